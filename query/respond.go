package query

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// responder writes the responses of reads.
type responder struct {
	budget      *responseBudget
	requester   *requester
	readCounter *readCounter
	readLog     *readLog
	limiter     ClientLimiter
	metrics     *metrics
	log         *slog.Logger
}

// respond writes the response of a read.
func (rs *responder) respond(c echo.Context, client access.Client, e schemas.Entity, v view) error {
	rs.metrics.observeRead(e, v)
	rs.readLog.noteRead(c, e, v, 0)
	switch v.freshness {
	case store.Fresh, store.Stale:
		err := rs.respondSnapshot(c, client, e, v)
		if err == nil {
			rs.readCounter.read(v.count)
		}
		return err
	case store.NotFound:
		return notFoundError(rs.bodyOf(v, e.Source))
	case store.Updating:
	}
	return rs.respondUpdating(c, e, v)
}

// Headers of each snapshot response, allocated once.
var (
	jsonType       = []string{"application/json"}
	varyByEncoding = []string{"Accept-Encoding"}
	noSniffing     = []string{"nosniff"}
	// sandboxed prevents a browser from running scripts of raw content, such as XHTML or SVG, with the
	// origin of the service.
	sandboxed = []string{"default-src 'none'; style-src 'unsafe-inline'; sandbox"}
)

// respondSnapshot responds with the snapshot, or with 304 if the client already has it. Most
// requests end here, so everything that several responses can share is in the cache entry.
func (rs *responder) respondSnapshot(c echo.Context, client access.Client, e schemas.Entity, v view) error {
	r, h := c.Request(), c.Response().Header()
	as := bestEncoding(r.Header["Accept-Encoding"])
	unchanged := notModified(r, v.entry, as)
	var state readBody // set only if it is needed, because most responses are FRESH
	if v.freshness == store.Stale {
		state = rs.bodyOf(v, e.Source)
	}
	var first, second []byte
	var length []string
	if !unchanged {
		tail := v.freshTail
		if v.freshness == store.Stale && !v.isRaw() {
			tail = marshalTail(state)
		}
		b := v.bodyFor(as, tail)
		if n := v.extraRequests(b); n > 0 {
			if err := rs.limiter.AllowRequests(client.Name, n); err != nil {
				return err
			}
		}
		held, err := rs.budget.reserve(client.BoundName(), v.responseSize(b))
		if err != nil {
			return err
		}
		defer held.releaseAll()
		if first, second, err = v.parts(b, tail); err != nil {
			return err
		}
		if length = b.length; second != nil {
			length = []string{strconv.Itoa(len(first) + len(second))}
		}
	}
	headers := v.timeHeaders(v.freshness, v.at)
	h["Etag"], h["Last-Modified"] = v.etags[as], v.lastModified
	h["Cache-Control"], h["Cache-Status"] = headers.cacheControl, headers.cacheStatus
	if headers.age != nil {
		h["Age"] = headers.age
	}
	v.setDegraded(h, state.Refresh)
	if vary := h["Vary"]; len(vary) > 0 { // the CORS middleware has set Vary: Origin, which must be kept
		h["Vary"] = append(vary, varyByEncoding...)
	} else {
		h["Vary"] = varyByEncoding
	}
	if v.isRaw() {
		h["X-Content-Type-Options"], h["Content-Security-Policy"] = noSniffing, sandboxed
	}
	if unchanged {
		c.Response().WriteHeader(http.StatusNotModified)
		return nil
	}
	h["Content-Type"], h["Content-Length"] = v.contentType, length
	if as != identity {
		h["Content-Encoding"] = contentEncoding[as]
	}
	w := c.Response()
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	rs.writeBody(c, first, second)
	return nil
}

// writeBody writes the two parts of a body; the second can be empty.
func (rs *responder) writeBody(c echo.Context, first, second []byte) {
	w := c.Response()
	if conn := joinWrites(c.Request(), len(first)+len(second)); conn != nil {
		defer func() {
			if err := conn.sendJoined(w.Writer); err != nil {
				rs.log.Debug("client disconnected before the response", "err", err)
			}
		}()
	}
	for _, part := range [2][]byte{first, second} {
		if len(part) > maxUncounted {
			if rs.write(c, part) != nil {
				return
			}
		} else if len(part) > 0 {
			if _, err := w.Write(part); err != nil {
				rs.log.Debug("client disconnected before the response", "err", err)
				return
			}
		}
	}
}

// notModified reports whether the client already has the entry's content in this encoding, by
// If-None-Match or, if that is missing, by If-Modified-Since (RFC 9110 §13.2.2).
func notModified(r *http.Request, e *entry, as encoding) bool {
	if none := r.Header["If-None-Match"]; len(none) > 0 {
		return matchesETag(none, e.etags[as][0])
	}
	since := r.Header["If-Modified-Since"]
	if len(since) != 1 {
		return false
	}
	at, err := http.ParseTime(since[0])
	return err == nil && !e.UpdatedAt.Truncate(time.Second).After(at)
}

// matchesETag reports whether an If-None-Match value contains the tag, by weak comparison (RFC
// 9110 §8.8.3.2), or is *.
func matchesETag(values []string, etag string) bool {
	opaque := strings.TrimPrefix(etag, "W/")
	for _, list := range values {
		for list != "" {
			list = strings.TrimLeft(list, " \t,")
			if strings.HasPrefix(list, "*") {
				return true
			}
			list = strings.TrimPrefix(list, "W/")
			if !strings.HasPrefix(list, `"`) {
				break // the next element of If-None-Match is no entity tag, so the rest of the header value is ignored
			}
			end := strings.IndexByte(list[1:], '"')
			if end < 0 {
				break
			}
			if list[:end+2] == opaque {
				return true
			}
			list = list[end+2:]
		}
	}
	return false
}

// bestEncoding returns the encoding with the highest quality in Accept-Encoding. If several are
// equal, it prefers zstd (the stored form), then gzip, then identity (RFC 9110 §12.5.3). A
// client that accepts none of the three gets identity.
func bestEncoding(header []string) encoding {
	rating := [encodings]float64{identity: -1, gzipped: -1, zstandard: -1} // -1 means that Accept-Encoding does not list the encoding
	star := -1.0
	for _, list := range header {
		for list != "" {
			var item string
			item, list, _ = strings.Cut(list, ",")
			name, params, _ := strings.Cut(item, ";")
			name = strings.TrimSpace(name)
			q := parseQuality(params)
			switch {
			case strings.EqualFold(name, "zstd"):
				rating[zstandard] = q
			case strings.EqualFold(name, "gzip"), strings.EqualFold(name, "x-gzip"):
				rating[gzipped] = q
			case strings.EqualFold(name, "identity"):
				rating[identity] = q
			case name == "*":
				star = q
			}
		}
	}
	best, most := identity, 0.0
	for e := zstandard; e > identity; e-- {
		r := rating[e]
		if r < 0 {
			r = star
		}
		if r > most {
			best, most = e, r
		}
	}
	if rating[identity] > most {
		return identity
	}
	return best
}

// parseQuality parses the q value of a coding in Accept-Encoding. The result is 1 if `params` has
// no q value, and 0 if the q value is invalid.
func parseQuality(params string) float64 {
	name, value, found := strings.Cut(params, "=")
	if !found || !strings.EqualFold(strings.TrimSpace(name), "q") {
		return 1
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return 0
	}
	return q
}

const (
	// writeChunk is how many bytes are written with one deadline of writeTimeout. A client that
	// does not read a chunk in that time is disconnected, so the slowest accepted rate is 6.4
	// KiB/s.
	writeChunk   = 64 << 10
	writeTimeout = 10 * time.Second
	// sendBuffer is the kernel's send buffer per connection, in bytes. The kernel accepts more data
	// only when a third of the buffer is free. A slow client may not free a third of a larger
	// buffer within writeTimeout, and would be disconnected although it reads. The memory counts
	// toward the container's limit.
	sendBuffer = 256 << 10
)

// write writes part of a response in chunks. An error means that the client disconnected, or was
// disconnected because it read too slowly.
func (rs *responder) write(c echo.Context, part []byte) error {
	w := c.Response()
	deadline := http.NewResponseController(w)
	for len(part) > 0 {
		n := min(len(part), writeChunk)
		_ = deadline.SetWriteDeadline(time.Now().Add(writeTimeout)) // the response writers of tests have no deadline
		if _, err := w.Write(part[:n]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				rs.metrics.timedOut.Inc()
			}
			rs.log.Debug("response not read by the client", "err", err)
			return err
		}
		part = part[n:]
	}
	return nil
}

// limitSendBuffer sets the kernel's send buffer of a TCP connection.
func limitSendBuffer(conn net.Conn) {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	if tcp, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = tcp.SetWriteBuffer(sendBuffer)
	}
}

// bodyOf returns the fields of the response, except the snapshot.
func (rs *responder) bodyOf(v view, source string) readBody {
	_, freshness := v.status()
	b := readBody{Freshness: freshness}
	if v.entry != nil {
		b.LastUpdatedAt, b.LastCheckedAt = schemas.OptionalTime(v.UpdatedAt), schemas.OptionalTime(v.CheckedAt)
	}
	if v.reason != "" {
		b.Refresh = rs.requester.refreshStateOf(source, v.result)
	}
	return b
}

// respondUpdating responds to a read if no snapshot can be served. The status is 202 if a refresh is
// queued, and 404 if the upstream has no such entity. It is 429 if a limit of the client is exceeded,
// 400 if params of the entity are missing, and 503 if no refresh can be queued now.
func (rs *responder) respondUpdating(c echo.Context, e schemas.Entity, v view) error {
	body, a := rs.bodyOf(v, e.Source), v.result
	switch {
	case v.patient && a.refreshExpected():
		return nothingKnown(a, body)
	case a.refreshExpected() && a.Reason != reasonSlow:
		h := c.Response().Header()
		h.Set("Retry-After", strconv.Itoa(problem.Seconds(body.Refresh.retryAfter(v.at))))
		h.Set("Cache-Control", "no-store")
		h.Set("Cache-Status", "freshet; fwd=miss")
		return c.JSON(http.StatusAccepted, body)
	case a.Reason == HeldReason(schemas.HoldNotFound):
		return notFoundError(body)
	case a.Reason == ReasonMissingParams:
		return a.refused
	case a.refused != nil:
		return withBody(a.refused, &body)
	}
	if a.Reason.isHeld() {
		rs.metrics.heldReads.Inc() // the upstream has failed for the entity, so the SLO for reads excludes this response
	}
	p := problem.New(http.StatusServiceUnavailable, problem.NotQueued, "Nothing is stored, and no refresh can be queued now ("+string(a.Reason)+"): "+a.failureDetail()+".")
	p.After = max(time.Second, a.Until.Sub(v.at))
	if v.patient {
		p.After = unknownRetryAfter
	}
	return &readError{p, &body}
}

// maxRetryAfter is the maximum of Retry-After if a refresh is queued or expected. Estimates can be
// wrong, and an operator can end a stop at any time.
const maxRetryAfter = 30 * time.Second

// retryAfter returns the delay after which a client should read again: the time until r.Until, else
// the estimated wait. The delay is at least 1 s and at most maxRetryAfter. If the source sends no
// calls for an unknown time, the delay is maxRetryAfter.
func (r *refreshState) retryAfter(now time.Time) time.Duration {
	after := time.Duration(0)
	switch {
	case r.Queued && r.Reason != "" && r.Until == nil:
		after = maxRetryAfter
	case r.Until != nil:
		after = r.Until.Sub(now)
	case r.EstimatedWaitMs != nil:
		after = time.Duration(*r.EstimatedWaitMs) * time.Millisecond
	}
	return min(max(after, time.Second), maxRetryAfter)
}

func notFoundError(body readBody) error {
	return &readError{problem.New(http.StatusNotFound, problem.NotFound, "The upstream has no such entity."), &body}
}
