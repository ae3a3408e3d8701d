package simulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault is a fault rule for arrivals within the quota. A rule matches an arrival by Path and Key.
// The first matching rule that Percent and Count do not exclude decides the response.
type Fault struct {
	// Path and Key are regular expressions for the escaped path and for the entity's key (ocid);
	// an empty expression matches all.
	Path string `json:"path,omitempty"`
	Key  string `json:"key,omitempty"`
	// Percent is the probability that a matching call is affected; nil means 100.
	Percent *float64 `json:"percent,omitempty"`
	// Count is the number of affected calls after which the rule is disabled; nil means never.
	Count *int `json:"count,omitempty"`
	Kind  Kind `json:"kind"`

	RetryAfter string `json:"retryAfter,omitempty"` // TooManyRequests and Maintenance only: value of the header Retry-After
	// Headers replace headers of the response, except headers that describe the coding and length
	// of the body.
	Headers  map[string]string `json:"headers,omitempty"`
	Bytes    int64             `json:"bytes,omitempty"`    // Oversize only: length of the uncompressed body
	Depth    int64             `json:"depth,omitempty"`    // Deep only: number of nested arrays
	Location string            `json:"location,omitempty"` // Redirect only: value of the header Location
}

// Kind is the kind of a fault.
type Kind string

// The kinds of faults. The comment of a kind describes the response to the affected call.
const (
	TooManyRequests Kind = "429"              // status 429, error code OPENAPI00007
	InternalError   Kind = "500"              // status 500, error code OPENAPI00001
	Maintenance     Kind = "503-maintenance"  // status 503, error code OPENAPI00011
	GameMaintenance Kind = "game-maintenance" // status 400, error code OPENAPI00010
	HTML200         Kind = "html-200"         // an error page with status 200
	BadJSON         Kind = "bad-json"         // status 200 and the first two thirds of the document
	NotReady        Kind = "not-ready"        // status 400, error code OPENAPI00009
	NotFound        Kind = "not-found"        // status 400, error code OPENAPI00003
	BadParameter    Kind = "bad-parameter"    // status 400, error code OPENAPI00004
	BadKey          Kind = "bad-key"          // status 400, error code OPENAPI00005
	Forbidden       Kind = "forbidden"        // status 403, error code OPENAPI00002
	Oversize        Kind = "oversize"         // valid JSON of Fault.Bytes bytes; a decompression bomb if compressed
	Reset           Kind = "reset"            // the connection is closed in the middle of the body
	Hang            Kind = "hang"             // no response until the client disconnects
	SlowBody        Kind = "slow-body"        // the document in 64 pieces over 16 s
	Redirect        Kind = "redirect"         // status 302 with Fault.Location as the header Location
	Deep            Kind = "deep"             // status 200 and Fault.Depth nested arrays
	Shrink          Kind = "shrink"           // status 200 and the document with truncated lists
)

// errorKinds maps the kinds that respond with an error of the API.
var errorKinds = map[Kind]apiError{
	TooManyRequests: errQuota,
	InternalError:   errInternal,
	Maintenance:     errMaintenance,
	GameMaintenance: errGameMaintenance,
	NotReady:        errNotReady,
	NotFound:        errIdentifier,
	BadParameter:    errParameter,
	BadKey:          errKey,
	Forbidden:       errForbidden,
}

var allKinds = []Kind{
	TooManyRequests, InternalError, Maintenance, GameMaintenance, HTML200, BadJSON, NotReady, NotFound, BadParameter,
	BadKey, Forbidden, Oversize, Reset, Hang, SlowBody, Redirect, Deep, Shrink,
}

func kindList() string {
	list := make([]string, 0, len(allKinds))
	for _, k := range allKinds {
		list = append(list, string(k))
	}
	return strings.Join(list, ", ")
}

// rule is a Fault with its compiled regular expressions and the number of calls that it has
// affected. Simulator.mu guards it.
type rule struct {
	fault     Fault
	path, key *regexp.Regexp
	hits      int
}

const (
	oversizeStart = `{"padding":"`
	oversizeEnd   = `"}`
)

var (
	headerName  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	headerValue = regexp.MustCompile(`^[^\x00-\x1f\x7f]*$`)
	bodyHeaders = []string{"Content-Encoding", "Content-Length", "Transfer-Encoding"}
)

func (f Fault) compile() (*rule, error) {
	path, pathErr := regexp.Compile(f.Path)
	key, keyErr := regexp.Compile(f.Key)
	errs := []error{pathErr, keyErr}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	known := false
	for _, k := range allKinds {
		known = known || k == f.Kind
	}
	check(known, "unknown kind %q", f.Kind)
	check(f.Percent == nil || *f.Percent >= 0 && *f.Percent <= 100, "percent must be from 0 to 100")
	check(f.Count == nil || *f.Count >= 1, "count must be at least 1")
	check(f.RetryAfter == "" || f.Kind == TooManyRequests || f.Kind == Maintenance, "retryAfter is allowed only for %q and %q", TooManyRequests, Maintenance)
	minBytes := int64(len(oversizeStart) + len(oversizeEnd))
	check((f.Kind == Oversize) == (f.Bytes != 0), "bytes is required for %q and allowed only there", Oversize)
	check(f.Bytes == 0 || f.Bytes >= minBytes, "bytes must be at least %d", minBytes)
	check((f.Kind == Deep) == (f.Depth != 0) && f.Depth >= 0, "depth above 0 is required for %q and allowed only there", Deep)
	check((f.Kind == Redirect) == (f.Location != ""), "location is required for %q and allowed only there", Redirect)
	check(f.Headers == nil || f.Kind != Hang, "headers: not allowed for %q, which sends no response", Hang)
	for name, value := range f.Headers {
		check(headerName.MatchString(name) && headerValue.MatchString(value), "headers: %q: %q is not a valid header", name, value)
		check(!slices.Contains(bodyHeaders, http.CanonicalHeaderKey(name)), "headers: %s must not be set, because it describes the body", name)
	}
	return &rule{fault: f, path: path, key: key}, errors.Join(errs...)
}

// matchFault returns the fault of the first rule that affects a call, and increases the rule's
// number of affected calls. If no rule affects the call, it returns nil.
func (s *settings) matchFault(c call) *Fault {
	for _, r := range s.rules {
		switch {
		case r.fault.Count != nil && r.hits >= *r.fault.Count:
		case !r.path.MatchString(c.path) || !r.key.MatchString(c.key):
		case r.fault.Percent != nil && rand.Float64()*100 >= *r.fault.Percent:
		default:
			r.hits++
			return &r.fault
		}
	}
	return nil
}

const htmlPage = `<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>Error</title></head>
<body><h1>The request could not be satisfied.</h1><p>Please try again later.</p></body></html>
`

// A fault of kind SlowBody sends the body in slowBodyPieces pieces, and pauses for slowBodyPause after
// each piece.
const (
	slowBodyPieces = 64
	slowBodyPause  = 250 * time.Millisecond
)

func (s *Simulator) sendFault(ctx context.Context, x *exchange, c call, f Fault) {
	x.headers = f.Headers
	switch f.Kind {
	case TooManyRequests, InternalError, Maintenance, GameMaintenance, NotReady, NotFound, BadParameter, BadKey, Forbidden:
		if f.RetryAfter != "" {
			x.Header().Set("Retry-After", f.RetryAfter)
		}
		x.sendError(errorKinds[f.Kind])
	case HTML200:
		x.writeHeader(http.StatusOK, "text/html;charset=UTF-8")
		_, _ = x.Write([]byte(htmlPage))
	case BadJSON:
		body := appendPlain(nil, s.document(c))
		x.writeHeader(http.StatusOK, jsonType)
		_, _ = x.Write(body[:len(body)*2/3])
	case Shrink:
		x.send([]part{deflate(s.content.shrunk(s.document(c)))})
	case Oversize:
		x.sendOversize(f.Bytes)
	case Reset:
		body := x.encode(nil, s.document(c))
		x.writeHeader(http.StatusOK, jsonType)
		_, _ = x.Write(body[:len(body)/2])
		x.flush()
		panic(http.ErrAbortHandler) // this value makes net/http close the connection without a response
	case Hang:
		select {
		case <-ctx.Done():
		case <-s.closed:
			panic(http.ErrAbortHandler)
		}
	case SlowBody:
		body := x.encode(nil, s.document(c))
		x.writeHeader(http.StatusOK, jsonType)
		for i := range slowBodyPieces {
			_, _ = x.Write(body[i*len(body)/slowBodyPieces : (i+1)*len(body)/slowBodyPieces])
			x.flush()
			if !s.wait(ctx, slowBodyPause) {
				return
			}
		}
	case Redirect:
		x.Header().Set("Location", f.Location)
		x.writeHeader(http.StatusFound, jsonType)
	case Deep:
		x.writeHeader(http.StatusOK, jsonType)
		if x.repeat("[", f.Depth) == nil {
			_ = x.repeat("]", f.Depth)
		}
	}
}

// repeat writes a character many times.
func (x *exchange) repeat(character string, times int64) error {
	const chunk = 1 << 16
	line := []byte(strings.Repeat(character, int(min(times, chunk))))
	for ; times > 0; times -= chunk {
		if _, err := x.Write(line[:min(times, chunk)]); err != nil {
			return err
		}
	}
	return nil
}

const paddingLength = 1 << 20

// padding is one MiB of zeros, about 1 KB deflated.
var padding = sync.OnceValue(func() part { return deflate(bytes.Repeat([]byte{'0'}, paddingLength)) })

// sendOversize streams a valid document of the given length. It stops early if the client
// disconnects.
func (x *exchange) sendOversize(length int64) {
	encode := func(p part) []byte { return p.plain }
	var sum checksum
	if x.gzip {
		x.Header().Set("Content-Encoding", "gzip")
		encode = func(p part) []byte {
			sum.add(p.plain)
			return appendBlocks(nil, p)
		}
	}
	x.writeHeader(http.StatusOK, jsonType)
	if x.gzip {
		_, _ = x.Write(gzipHeader)
	}
	_, err := x.Write(encode(part{plain: []byte(oversizeStart)}))
	remaining := length - int64(len(oversizeStart)+len(oversizeEnd))
	for ; err == nil && remaining >= paddingLength; remaining -= paddingLength {
		_, err = x.Write(encode(padding()))
	}
	if err != nil {
		return
	}
	_, _ = x.Write(encode(deflate(padding().plain[:remaining])))
	_, _ = x.Write(encode(part{plain: []byte(oversizeEnd)}))
	if x.gzip {
		_, _ = x.Write(sum.appendTrailer(nil))
	}
}
