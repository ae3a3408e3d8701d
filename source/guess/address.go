package guess

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"unicode"

	"github.com/freshet/freshet/source"
)

// InputError says why an argument of the user is invalid.
type InputError struct{ text string }

func (e InputError) Error() string { return e.text }

func inputError(format string, args ...any) error {
	return InputError{fmt.Sprintf(format, args...)}
}

// address is one parsed URL. The fields literal and template contain no credential.
type address struct {
	base     string // scheme and host
	host     string // host without the port
	loopback bool
	literal  string   // path and query as in the URL; the calls use them
	template string   // path and query with placeholders for the ids; they are written into the configuration
	key      string   // example key; empty means that the URL has no id
	pattern  string   // setting keyPattern; empty means that the URL has no id
	groups   []string // named groups of the pattern; empty means that the key is the only id
	facet    string
	auth     source.Auth
	secret   string // the value of the credential that is sent
	password string // the password in the URL, or empty
	dropped  bool   // the URL had a fragment, which is not used
}

// parameter is one parameter of a query.
type parameter struct{ name, value string }

// parse parses the URL with the number n. Errors do not repeat the URL, which may contain a credential.
func parse(n int, raw string) (address, error) {
	fail := func(format string, args ...any) (address, error) {
		return address{}, inputError("URL %d: %s", n, fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(strings.TrimSpace(raw))
	switch {
	case err != nil:
		return fail("it must be a URL, for example https://api.example.com/products/42")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Hostname() == "":
		return fail("it needs a scheme (http or https) and a host, as in https://api.example.com/products/42")
	case strings.ContainsAny(u.Path, "{}") || strings.ContainsAny(u.RawQuery, "{}") || strings.Contains(u.Path, "/:"):
		return fail("write an existing id in place of the placeholder, as in /products/42, because init calls the URL")
	}
	a := address{base: u.Scheme + "://" + strings.ToLower(u.Host), host: strings.ToLower(u.Hostname()), dropped: u.Fragment != ""}
	if ip := net.ParseIP(a.host); a.host == "localhost" || ip != nil && ip.IsLoopback() {
		a.loopback = true
	}
	segments := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
	for i, segment := range segments {
		plain, err := url.PathUnescape(segment)
		switch {
		case err != nil || segment == "." || segment == "..":
			return fail("segment %d of the path is invalid", i+1)
		case tokenish.MatchString(plain):
			return fail("segment %d of the path looks like a credential; freshet sends a credential in a header or a query parameter only", i+1)
		}
	}
	query, err := a.takeCredential(u)
	if err != nil {
		return fail("%v", err)
	}
	if err := a.findKey(segments, query); err != nil {
		return fail("%v", err)
	}
	if len(a.literal) > 4<<10 {
		return fail("it is longer than 4 KiB")
	}
	if a.secret != "" && u.Scheme == "http" && !a.loopback {
		return fail("the credential would be sent unencrypted over http; use https")
	}
	return a, nil
}

// takeCredential moves the credential of the URL to a.auth and a.secret. It returns the other
// parameters of the query.
func (a *address) takeCredential(u *url.URL) (query []parameter, err error) {
	env := envName(sourceName(a.host))
	if u.User != nil && u.User.String() != "" && u.User.String() != ":" {
		password, _ := u.User.Password()
		if a.password = password; password == "" {
			a.password = u.User.Username() // some APIs take an API key as the user name, without a password
		}
		a.auth = source.Auth{Header: "Authorization", Prefix: "Basic ", SecretEnv: env}
		a.secret = base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
	}
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		if pair == "" {
			continue
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		value, valueErr := url.QueryUnescape(rawValue)
		switch {
		case err != nil || valueErr != nil || name == "" || strings.ContainsFunc(name+value, unicode.IsControl):
			return nil, errors.New("its query has an invalid parameter")
		case !isSecret(name, value):
			query = append(query, parameter{name, value})
		case a.secret != "":
			return nil, errors.New("it contains more than one credential, and freshet sends one; remove the others")
		default:
			a.auth, a.secret = source.Auth{Query: name, SecretEnv: env}, value
		}
	}
	return query, nil
}
