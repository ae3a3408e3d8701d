package simulator

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// endpoint is one path of the API.
type endpoint struct {
	key      string   // name of the parameter that contains the entity's key
	optional []string // names of the other parameters that the endpoint accepts
	document func(*content, entity) []part
}

const base = "/maplestory/v1/"

// nameParam is the parameter of the endpoint that returns the ocid of a character name.
const nameParam = "character_name"

var endpoints = map[string]*endpoint{
	base + "character/item-equipment": {key: "ocid", optional: []string{"date"}, document: (*content).itemEquipment},
	base + "character/basic":          {key: "ocid", optional: []string{"date"}, document: (*content).basic},
	base + "character/stat":           {key: "ocid", optional: []string{"date"}, document: (*content).stat},
	base + "id":                       {key: nameParam, document: (*content).id},
}

// call is a parsed request.
type call struct {
	target       string // path and query as received, still escaped
	path         string // as received, still escaped: the API treats two spellings of a path as two paths
	endpoint     *endpoint
	key          string
	date         string
	invalid      bool // true: a required parameter is missing, malformed or repeated
	unknownParam bool // true: a parameter is unknown to the endpoint or repeated
}

var dateFormat = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)

func parseCall(r *http.Request) call {
	c := call{path: r.URL.EscapedPath()}
	c.target = c.path
	if r.URL.RawQuery != "" {
		c.target += "?" + r.URL.RawQuery
	}
	c.endpoint = endpoints[c.path]
	values, err := url.ParseQuery(r.URL.RawQuery)
	if c.endpoint == nil {
		c.key = values.Get("ocid")
		return c
	}
	c.unknownParam = err != nil
	for name, values := range values {
		known := name == c.endpoint.key || slices.Contains(c.endpoint.optional, name)
		c.unknownParam = c.unknownParam || !known || len(values) > 1
		c.invalid = c.invalid || known && len(values) > 1
	}
	c.key, c.date = values.Get(c.endpoint.key), values.Get("date")
	c.invalid = c.invalid || err != nil || c.key == ""
	if c.date != "" && !dateFormat.MatchString(c.date) {
		c.date, c.invalid = "", true
	}
	return c
}

// acceptsGzip implements RFC 9110 §12.5.3: gzip is listed with a weight above 0, or matches the
// wildcard.
func acceptsGzip(accept []string) bool {
	wildcard := false
	for field := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		coding, parameters, _ := strings.Cut(field, ";")
		name, weight, found := strings.Cut(strings.TrimSpace(parameters), "=")
		accepted := true
		if found && strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
			accepted = err == nil && q > 0
		}
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip", "x-gzip":
			return accepted
		case "*":
			wildcard = accepted
		}
	}
	return wildcard
}

// exchange is the response to one call. status is 0 until the header is written.
type exchange struct {
	http.ResponseWriter
	gzip    bool
	latency time.Duration
	headers map[string]string // headers that a fault adds to the response
	status  int
}

const jsonType = "application/json;charset=UTF-8"

// realHeader is the header of a captured response of the real API, without the headers added by
// its content delivery network.
var realHeader = http.Header{
	"Vary":                      {"Origin,Access-Control-Request-Method,Access-Control-Request-Headers", "Accept-Encoding"},
	"X-Content-Type-Options":    {"nosniff"},
	"X-Xss-Protection":          {"0"},
	"Cache-Control":             {"no-cache, no-store, max-age=0, must-revalidate"},
	"Pragma":                    {"no-cache"},
	"Expires":                   {"0"},
	"Strict-Transport-Security": {"max-age=31536000 ; includeSubDomains"},
	"Referrer-Policy":           {"no-referrer"},
	"Inface-Wasm-Filter":        {"1.5.5"},
	"Server":                    {"inface"},
}

func (x *exchange) writeHeader(status int, contentType string) {
	h := x.Header()
	maps.Copy(h, realHeader)
	h.Set("Content-Type", contentType)
	h.Set("X-Envoy-Upstream-Service-Time", strconv.FormatInt(x.latency.Milliseconds(), 10))
	for name, value := range x.headers {
		h.Set(name, value)
	}
	x.status = status
	x.WriteHeader(status)
}

// send responds with status 200 and a document. A write fails only if the client has
// disconnected, so its error is ignored.
func (x *exchange) send(doc []part) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	*buf = x.encode((*buf)[:0], doc)
	x.writeHeader(http.StatusOK, jsonType)
	_, _ = x.Write(*buf)
}

// encode appends the document, compressed if the client accepts gzip.
func (x *exchange) encode(dst []byte, doc []part) []byte {
	if x.gzip {
		x.Header().Set("Content-Encoding", "gzip")
		return appendGzip(dst, doc)
	}
	return appendPlain(dst, doc)
}

func (x *exchange) flush() {
	_ = http.NewResponseController(x.ResponseWriter).Flush()
}

// apiError is an error response of the API. The names, the statuses, and the messages of
// OPENAPI00004, 00005 and 00007 were captured from the real API. The other messages are invented.
type apiError struct {
	status  int
	name    string
	message string
}

var (
	errInternal        = apiError{http.StatusInternalServerError, "OPENAPI00001", "Internal server error"}
	errForbidden       = apiError{http.StatusForbidden, "OPENAPI00002", "Permission denied"}
	errIdentifier      = apiError{http.StatusBadRequest, "OPENAPI00003", "Please input valid id"}
	errParameter       = apiError{http.StatusBadRequest, "OPENAPI00004", "Please input valid parameter"}
	errKey             = apiError{http.StatusBadRequest, "OPENAPI00005", "The apikey is not valid."}
	errPath            = apiError{http.StatusBadRequest, "OPENAPI00006", "Please input valid path"}
	errQuota           = apiError{http.StatusTooManyRequests, "OPENAPI00007", "Please try again later"}
	errNotReady        = apiError{http.StatusBadRequest, "OPENAPI00009", "Data is being prepared"}
	errGameMaintenance = apiError{http.StatusBadRequest, "OPENAPI00010", "The game is under maintenance"}
	errMaintenance     = apiError{http.StatusServiceUnavailable, "OPENAPI00011", "The API is under maintenance"}
	errMethod          = apiError{http.StatusMethodNotAllowed, "OPENAPI00006", "Please use GET"}
)

func (e apiError) body() []byte {
	b, _ := json.Marshal(map[string]any{"error": map[string]string{"name": e.name, "message": e.message}})
	return b
}

func (x *exchange) sendError(e apiError) {
	x.writeHeader(e.status, jsonType)
	_, _ = x.Write(e.body())
}
