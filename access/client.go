package access

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// Delegate is the scope of a key whose holder calls on behalf of its own users and names
// them in Config.ClientHeader: each of them is a client of its own to all bounds.
const Delegate Scope = "delegate"

// maxClientHeaderSize is the length of the longest value of Config.ClientHeader, in bytes.
const maxClientHeaderSize = 256

// codeClient is the code of a request whose client header can't be read.
const codeClient = "bad-client"

// ID returns the client's schemas.ClientID, which names it in Redis and on topics without
// saying who it is. Clients that share a bound have one ID.
func (c Client) ID() string { return schemas.ClientID(c.BoundName()) }

// BoundName returns the name under which every limit of one process counts the client. The
// addresses of one IPv6 network (/64) share it.
func (c Client) BoundName() string { return limitKey(c.Name) }

// delegated returns the client on whose behalf a request is sent: the one that the header
// names, if c may name one, and else c. The value itself is neither kept nor logged: a
// part of its hash, taken together with the name of c, stands in the name.
func (c Client) delegated(header string, r *http.Request) (Client, error) {
	if header == "" || !c.May(Delegate) {
		return c, nil
	}
	values := r.Header.Values(header)
	switch {
	case len(values) == 0 || (len(values) == 1 && values[0] == ""):
		return c, nil
	case len(values) > 1 || len(values[0]) > maxClientHeaderSize:
		return Client{}, problem.New(http.StatusBadRequest, codeClient,
			fmt.Sprintf("Send the header %s once, with at most %d bytes: it names the client on whose behalf you call.", header, maxClientHeaderSize))
	}
	c.Name += " for " + schemas.ClientID(c.Name+"\x00"+values[0])
	return c, nil
}

var headerName = regexp.MustCompile("^[0-9A-Za-z-]{1,64}$")

// reservedHeaders have a meaning of their own, or are set by others than the client.
var reservedHeaders = []string{
	"Authorization", "Cookie", "Host", "Origin", "Forwarded", "X-Forwarded-For", "X-Correlation-Id", "Traceparent",
	"Prefer", "If-None-Match", "Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Transfer-Encoding",
}

func checkClientHeader(name string) error {
	switch {
	case name == "":
	case !headerName.MatchString(name):
		return fmt.Errorf("clientHeader: %.80q must be the name of a header of letters, digits and -, as in X-Client-Id", name)
	case slices.ContainsFunc(reservedHeaders, func(h string) bool { return strings.EqualFold(h, name) }):
		return fmt.Errorf("clientHeader: %s has another meaning; name a header of your own, as in X-Client-Id", name)
	}
	return nil
}

// checkDelegate returns an error for scopes that name others' clients and do nothing else.
func checkDelegate(scopes []Scope) error {
	does := func(s Scope) bool { return s != Delegate && !strings.HasPrefix(string(s), seePrefix) }
	if !slices.ContainsFunc(scopes, does) {
		return errors.New("the scopes say what the key sees, or for whom it calls, and not what it may do; add read, refresh or inspect")
	}
	return nil
}
