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

// Delegate is the scope of a key that calls on behalf of its own users. It names the user in
// Config.ClientHeader, and each user has separate limits.
const Delegate Scope = "delegate"

// maxClientHeaderSize is the maximum length in bytes of the value of Config.ClientHeader.
const maxClientHeaderSize = 256

// codeClient is the problem code of an invalid client header.
const codeClient = "bad-client"

// ID returns the client's schemas.ClientID. It identifies the client in Redis and in Kafka
// records without revealing its name. Clients with the same BoundName have the same ID.
func (c Client) ID() string { return schemas.ClientID(c.BoundName()) }

// BoundName returns the name under which all limits count the client. Unauthenticated addresses
// of one IPv6 /64 network share a name.
func (c Client) BoundName() string { return limitKey(c.Name) }

// delegated returns the client on whose behalf the request is sent. If c has the scope Delegate
// and the header is set, the name of the result contains a hash of c's name and the header
// value; else it is c. The value itself is not stored or logged.
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

// reservedHeaders have a defined meaning, or are set by proxies.
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

// checkDelegate returns an error for scopes that grant no action: only delegate or see:….
func checkDelegate(scopes []Scope) error {
	does := func(s Scope) bool { return s != Delegate && !strings.HasPrefix(string(s), seePrefix) }
	if !slices.ContainsFunc(scopes, does) {
		return errors.New("the scopes allow no action: delegate and see: need read, refresh or inspect")
	}
	return nil
}
