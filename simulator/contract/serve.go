package contract

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// call is a request as the contracts see it.
type call struct {
	*http.Request
	body []byte
	at   time.Time // by the upstream's clock
}

// reply is an answer before it is written.
type reply struct {
	status int
	header http.Header
	body   []byte
	// charges is charged when the answer is written, or given back if negative.
	charges   []charge
	noHeaders bool // doesn't announce anything
	noPenalty bool // is not penalised
}

const (
	jsonType = "application/json"
	htmlType = "text/html;charset=UTF-8"
	// maxViolations is how many refusals are told of in words.
	maxViolations = 20
	maxBody       = 1 << 20
)

// text is a reply as it stands.
func text(status int, mediaType, body string) reply {
	return reply{status: status, header: http.Header{"Content-Type": {mediaType}}, body: []byte(body)}
}

// document is a reply in JSON.
func document(status int, v any) reply {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // contracts answer with texts, numbers, maps and lists
	}
	return text(status, jsonType, string(body))
}

// setHeader sets a header as the API spells it, which is not always Go's way.
func setHeader(h http.Header, name, value string) { h[name] = []string{value} }

// object is a JSON object.
type object map[string]any

// content is the document of whatever a call asks for: the same for the same
// path, query and body.
func (m *policyMaker) content(c *call) object {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s %s?%s %s", m.seed, c.Method, c.URL.Path, c.URL.RawQuery, c.body)
	return object{"path": c.URL.Path, "value": strconv.FormatUint(h.Sum64(), 16)}
}

// etag is the validator of what a call asks for.
func (m *policyMaker) etag(c *call) string { return `"` + m.content(c)["value"].(string) + `"` }

// credential is the credential of a call, without its scheme.
func credential(c *call) string {
	text := c.Header.Get("Authorization")
	if _, after, found := strings.Cut(text, " "); found {
		return after
	}
	return text
}

// owner is whose credential it is: what stands before the first hyphen. So
// alice-1 and alice-2 are two credentials of alice.
func owner(credential string) string {
	before, _, _ := strings.Cut(credential, "-")
	return before
}

// clientAddress is the address a call came from.
func clientAddress(c *call) string {
	host, _, _ := net.SplitHostPort(c.RemoteAddr)
	return host
}

// pathPrefix are the first so many parts of the path.
func pathPrefix(c *call, n int) string {
	parts := strings.Split(strings.Trim(c.URL.Path, "/"), "/")
	return strings.Join(parts[:min(n, len(parts))], "/")
}

// seconds are whole seconds, rounded up and never negative.
func seconds(d time.Duration) int { return int(max(0, (d+time.Second-1)/time.Second)) }

// epoch is in seconds, rounded up.
func epoch(t time.Time) string {
	return strconv.FormatInt(t.Add(time.Second-1).Unix(), 10)
}

// fraction is seconds with milliseconds, rounded up and never negative.
func fraction(d time.Duration) float64 {
	return float64(max(0, (d+time.Millisecond-1)/time.Millisecond)) / 1000
}

// number writes units in full.
func number(units float64) string { return strconv.FormatFloat(units, 'f', 0, 64) }

func (u *Upstream) now() time.Time { return time.Now().Add(u.options.Skew) }

// ServeHTTP answers /_stats and /_reset for who tries it, and judges all else.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_") {
		u.serveOperator(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "the body could not be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	v := u.receive(&call{Request: r, body: body})
	waited := wait(r.Context(), v.wait)
	// Before it is answered: who has the answer may make the next call at once.
	u.finish(v)
	if waited {
		v.reply.write(w, r, u.maker.switches[Gzip] > 0)
	}
}

// pendingReply is a call from its arrival to its answer.
type pendingReply struct {
	reply reply
	held  []charge // the places it takes
	wait  time.Duration
}

// receive judges a call and makes up its answer. The clock is read inside the
// lock, so that times never run backwards along the record.
func (u *Upstream) receive(c *call) pendingReply {
	u.mu.Lock()
	defer u.mu.Unlock()
	c.at = u.now()
	u.last = c.at.Add(-u.options.Skew)
	if u.arrivals == 0 {
		u.first = u.last
	}
	u.arrivals++
	u.inFlight++
	u.maxInFlight = max(u.maxInFlight, u.inFlight)

	demands := u.contract.charges(c)
	v := u.decide(c, demands)
	out := pendingReply{wait: u.randomUpTo(u.options.MaxExtraLatency)}
	if v.refusedBy != nil {
		u.recordViolation(c, v)
	} else {
		out.wait += u.options.Latency.Min + u.randomUpTo(u.options.Latency.Max-u.options.Latency.Min)
		for _, d := range demands {
			if d.policy.kind == concurrency {
				out.held = append(out.held, charge{policy: d.policy, scope: d.scope, cost: -d.cost})
			}
		}
	}
	out.reply = u.buildReply(c, v)
	return out
}

// recordViolation counts a refusal and puts it in words.
func (u *Upstream) recordViolation(c *call, v *decision) {
	p := v.refusedBy.policy
	u.refusals[p.name]++
	if len(u.violations) < maxViolations {
		u.violations = append(u.violations, fmt.Sprintf("%v after the first call: %s %s was over %q, %v %s (%s), of which %v were left",
			u.last.Sub(u.first), c.Method, c.URL.Path, p.name, p.limit, p.unit, p.span(), roundUnits(v.refusedBy.remaining)))
	}
}

func (u *Upstream) finish(v pendingReply) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.inFlight--
	at := u.now()
	u.applyCharges(at, v.held)
	u.applyCharges(at, v.reply.charges)
}

func (u *Upstream) randomUpTo(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return time.Duration(u.maker.rng.Int64N(int64(most) + 1))
}

// wait reports whether d has passed: false once the client has gone.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (rep reply) write(w http.ResponseWriter, r *http.Request, compress bool) {
	maps.Copy(w.Header(), rep.header)
	if compress && rep.status != http.StatusNotModified && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write(rep.body) // to memory
		_ = z.Close()
		rep.body = packed.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(rep.status)
	_, _ = w.Write(rep.body) // fails only when the client has gone
}
