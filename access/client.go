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

// Delegate is the scope of an API key or token whose holder sends requests on behalf of its own
// users. The header Config.ClientHeader of a request names the user, and each user has separate
// limits.
const Delegate Scope = "delegate"

// maxClientHeaderSize is the maximum length in bytes of the value of Config.ClientHeader.
const maxClientHeaderSize = 256

// ID returns the client's schemas.ClientID, a hash of BoundName. It identifies the client in
// Redis and in Kafka records without revealing its name.
func (c Client) ID() string { return schemas.ClientID(c.BoundName()) }

// AddressName returns the name of a client that is not authenticated and is known only by its IP
// address.
func AddressName(address string) string { return unauthenticatedPrefix + address }

// BoundName returns the name under which all limits count the client. Unauthenticated addresses
// of one IPv6 /64 network share a name.
func (c Client) BoundName() string { return limitKey(c.Name) }

// delegated returns the client on whose behalf c sends the request. If c has the scope Delegate and
// the request has a header with the name `header`, the returned client's name is c's name and a
// hash of the header value. Otherwise the result is c. The header value itself is not stored or
// logged.
func (c Client) delegated(header string, r *http.Request) (Client, error) {
	if header == "" || !c.May(Delegate) {
		return c, nil
	}
	values := r.Header.Values(header)
	switch {
	case len(values) == 0 || (len(values) == 1 && values[0] == ""):
		return c, nil
	case len(values) > 1 || len(values[0]) > maxClientHeaderSize:
		return Client{}, problem.New(http.StatusBadRequest, problem.BadClient,
			fmt.Sprintf("Send the header %s once, with at most %d bytes: it names the client on whose behalf you call.", header, maxClientHeaderSize))
	}
	c.Name += " for " + schemas.ClientID(c.Name+"\x00"+values[0])
	return c, nil
}

var headerName = regexp.MustCompile("^[0-9A-Za-z-]{1,64}$")

// reservedHeaders are headers that can't be the Config.ClientHeader, because they have a defined
// meaning or proxies set them.
var reservedHeaders = []string{
	"Authorization", "Cookie", "Host", "Origin", "Forwarded", "X-Forwarded-For", "X-Correlation-Id", "Traceparent",
	"Prefer", "Idempotency-Key", "If-None-Match", "Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Transfer-Encoding",
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

// checkDelegate returns an error if the scopes allow no action, because each scope is "delegate" or
// begins with "see:" or "plan:".
func checkDelegate(scopes []Scope) error {
	does := func(s Scope) bool {
		return s != Delegate && !strings.HasPrefix(string(s), seePrefix) && !strings.HasPrefix(string(s), planPrefix)
	}
	if !slices.ContainsFunc(scopes, does) {
		return errors.New("the scopes allow no action: \"delegate\", \"see:NAME\" and \"plan:NAME\" need one of the scopes read, refresh or inspect")
	}
	return nil
}
