package guess

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/freshet/freshet/source"
)

// InputError is an error in the arguments of the user.
type InputError struct{ text string }

func (e InputError) Error() string { return e.text }

func inputError(format string, args ...any) error {
	return InputError{fmt.Sprintf(format, args...)}
}

// address is one parsed URL. The fields literal and template contain no credential.
type address struct {
	base     string // scheme and host
	host     string // without the port
	loopback bool
	literal  string // path and query as in the URL; they are called
	template string // path and query with {key}; they are written into the configuration
	key      string // example key; empty: the path has no id
	facet    string
	fixed    []string // ids that stay in the template, because {key} replaces another id
	auth     source.Auth
	secret   string // the value of the credential that is sent
	password string // the password in the URL, or empty
	dropped  bool   // the URL had a fragment
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
		return fail("it is not a URL, such as https://api.example.com/products/42")
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
	a.chooseKey(segments, query)
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

// extension matches a path segment that ends with the extension of a format, such as 42.json.
var extension = regexp.MustCompile(`^(.+)(\.(json|xml|php|aspx?))$`)

// optionNames are query parameters that choose the format or a part of the response, not an entity.
var optionNames = []string{
	"page", "per_page", "perpage", "page_size", "pagesize", "limit", "offset", "size", "count", "start", "skip", "top", "sort", "order", "order_by", "direction", "fields", "format",
	"lang", "language", "locale", "include", "expand", "embed", "cursor", "after", "before", "since", "until", "version", "v", "api-version", "api_version", "units", "type", "status", "state", "callback", "pretty", "output", "from", "to",
}

// isIDName reports whether a query parameter of that name identifies an entity.
func isIDName(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasSuffix(lower, "id") || slices.Contains([]string{"key", "slug", "code", "symbol", "name", "username", "user", "login", "email", "uuid", "guid", "isbn", "sku", "q", "query"}, lower)
}

// chooseKey replaces one id by {key}: the last id in the query or, without one, the last id in the path.
func (a *address) chooseKey(segments []string, query []parameter) {
	plain := make([]string, len(segments))
	at, ids := -1, []int{}
	for i, segment := range segments {
		plain[i], _ = url.PathUnescape(segment)
		if id := extension.ReplaceAllString(plain[i], "$1"); isKey(id) && isPathID(plain, i, id) {
			at, ids = i, append(ids, i)
		}
	}
	chosen := -1 // index in query
	for i, p := range query {
		if isIDName(p.name) && isKey(p.value) && !slices.Contains(optionNames, strings.ToLower(p.name)) {
			chosen = i
		}
	}
	for _, strong := range []bool{true, false} {
		for i, p := range slices.Backward(query) {
			if chosen < 0 && at < 0 && isKey(p.value) && !slices.Contains(optionNames, strings.ToLower(p.name)) && (isStrongID(p.value) || !strong) {
				chosen = i
			}
		}
	}
	if chosen >= 0 {
		at = -1
	}
	for _, i := range ids {
		if i != at {
			a.fixed = append(a.fixed, plain[i])
		}
	}
	for i, p := range query {
		if i != chosen && isStrongID(p.value) && !slices.Contains(optionNames, strings.ToLower(p.name)) {
			a.fixed = append(a.fixed, p.name+"="+p.value)
		}
	}
	var path, literal strings.Builder
	for i, segment := range segments {
		path.WriteByte('/')
		literal.WriteByte('/')
		literal.WriteString(segment)
		if i != at {
			path.WriteString(segment)
			continue
		}
		suffix := ""
		if m := extension.FindStringSubmatch(plain[i]); m != nil {
			suffix = m[2]
		}
		a.key = strings.TrimSuffix(plain[i], suffix)
		path.WriteString("{key}" + suffix)
	}
	for i, p := range query {
		separator := "&"
		if i == 0 {
			separator = "?"
		}
		value := escapeQuery(p.value)
		literal.WriteString(separator + escapeQuery(p.name) + "=" + value)
		if i == chosen {
			a.key, value = p.value, "{key}"
		}
		path.WriteString(separator + escapeQuery(p.name) + "=" + value)
	}
	a.template, a.literal = path.String(), literal.String()
	a.facet = facetName(plain, at, ids, query, chosen)
}

// escapeQuery percent-encodes a text for a query.
func escapeQuery(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// isPathID reports whether segment i of a path is an id. The parameter id is the text of the segment
// without an extension such as .json.
func isPathID(segments []string, i int, id string) bool {
	before := ""
	if i > 0 {
		before = segments[i-1]
	}
	last := i == len(segments)-1 || i == len(segments)-2 && segments[i+1] == ""
	switch {
	case isStrongID(id):
		return !strings.EqualFold(before, "api") && !strings.EqualFold(before, "rest")
	case slices.Contains(fixedWords, strings.ToLower(id)):
		return false
	case i > 1 && slices.Contains([]string{"repos", "repositories"}, strings.ToLower(segments[i-2])):
		return true // as in repos/OWNER/NAME
	case isPlural(before):
		return last || !isPlural(id) && !version.MatchString(id)
	}
	return last && i > 0 && date.MatchString(id)
}
