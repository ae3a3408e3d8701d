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

// call is a received request.
type call struct {
	*http.Request
	body []byte
	at   time.Time // time of arrival by the upstream's clock
}

// reply is a response before it is written.
type reply struct {
	status int
	header http.Header
	body   []byte
	// charges are applied when the response is written; negative ones are refunds.
	charges   []charge
	noHeaders bool // true: omit the rate-limit headers
	noPenalty bool // true: do not apply the charges of contract.chargeForReply
}

const (
	jsonType = "application/json"
	htmlType = "text/html;charset=UTF-8"
	// maxViolations is the maximum length of Stats.Violations.
	maxViolations = 20
	maxBody       = 1 << 20
)

// text returns a reply with the given body.
func text(status int, mediaType, body string) reply {
	return reply{status: status, header: http.Header{"Content-Type": {mediaType}}, body: []byte(body)}
}

// document returns a JSON reply.
func document(status int, v any) reply {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: contracts use only strings, numbers, maps and slices
	}
	return text(status, jsonType, string(body))
}

// setHeader sets a header in the spelling of the API, which may not be canonical.
func setHeader(h http.Header, name, value string) { h[name] = []string{value} }

// object is a JSON object.
type object map[string]any

// content returns the content for a call. It depends only on the seed and the request.
func (m *policyMaker) content(c *call) object {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s %s?%s %s", m.seed, c.Method, c.URL.Path, c.URL.RawQuery, c.body)
	return object{"path": c.URL.Path, "value": strconv.FormatUint(h.Sum64(), 16)}
}

// etag returns the value of the header ETag for the content that a call returns.
func (m *policyMaker) etag(c *call) string { return `"` + m.content(c)["value"].(string) + `"` }

// credential returns the credential in the Authorization header, without its scheme.
func credential(c *call) string {
	text := c.Header.Get("Authorization")
	if _, after, found := strings.Cut(text, " "); found {
		return after
	}
	return text
}

// owner returns the account of a credential: the text before the first hyphen. For example, alice-1
// and alice-2 are two credentials of the account alice.
func owner(credential string) string {
	before, _, _ := strings.Cut(credential, "-")
	return before
}

// clientAddress returns the IP address of the client.
func clientAddress(c *call) string {
	host, _, _ := net.SplitHostPort(c.RemoteAddr)
	return host
}

// pathPrefix returns the first n segments of the path.
func pathPrefix(c *call, n int) string {
	parts := strings.Split(strings.Trim(c.URL.Path, "/"), "/")
	return strings.Join(parts[:min(n, len(parts))], "/")
}

// seconds returns whole seconds, rounded up and at least 0.
func seconds(d time.Duration) int { return int(max(0, (d+time.Second-1)/time.Second)) }

// epoch formats a time as Unix seconds, rounded up.
func epoch(t time.Time) string {
	return strconv.FormatInt(t.Add(time.Second-1).Unix(), 10)
}

// fractionalSeconds returns seconds with millisecond precision, rounded up and at least 0.
func fractionalSeconds(d time.Duration) float64 {
	return float64(max(0, (d+time.Millisecond-1)/time.Millisecond)) / 1000
}

// number formats units without an exponent.
func number(units float64) string { return strconv.FormatFloat(units, 'f', 0, 64) }

func (u *Upstream) now() time.Time { return time.Now().Add(u.options.Skew) }

// ServeHTTP answers the operator endpoints /_stats and /_reset. Every other request is a call
// of the API.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_") {
		u.serveOperator(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "failed to read the body: "+err.Error(), http.StatusBadRequest)
		return
	}
	v := u.receive(&call{Request: r, body: body})
	waited := wait(r.Context(), v.wait)
	// Apply the refunds and charges before writing the response: a client may make its next call
	// as soon as it has the response.
	u.finish(v)
	if waited {
		v.reply.write(w, r, u.maker.switches[Gzip] > 0)
	}
}

// pendingReply is a response whose delay has not passed.
type pendingReply struct {
	reply reply
	held  []charge // refunds that free the call's units of concurrency limits when the call ends
	wait  time.Duration
}

// receive decides about a call and builds its response. It reads the clock under the lock, so
// that times in the logs never decrease.
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

	charges := u.contract.charges(c)
	v := u.decide(c, charges)
	out := pendingReply{wait: u.randomUpTo(u.options.MaxExtraLatency)}
	if v.refusedBy != nil {
		u.recordViolation(c, v)
	} else {
		out.wait += u.options.Latency.Min + u.randomUpTo(u.options.Latency.Max-u.options.Latency.Min)
		for _, d := range charges {
			if d.policy.kind == concurrency {
				out.held = append(out.held, charge{policy: d.policy, scope: d.scope, cost: -d.cost})
			}
		}
	}
	out.reply = u.buildReply(c, v)
	return out
}

// recordViolation counts a refusal for the policy that refused the call. The first maxViolations
// refusals are also described in words for Stats.Violations.
func (u *Upstream) recordViolation(c *call, v *decision) {
	p := v.refusedBy.policy
	u.refusals[p.name]++
	if len(u.violations) < maxViolations {
		u.violations = append(u.violations, fmt.Sprintf("%v after the first call: %s %s exceeded %q, %v %s (%s); %v remained",
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

func (u *Upstream) randomUpTo(maximum time.Duration) time.Duration {
	if maximum <= 0 {
		return 0
	}
	return time.Duration(u.maker.rng.Int64N(int64(maximum) + 1))
}

// wait returns true after d, and false if the client disconnects first.
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
		var compressed bytes.Buffer
		z := gzip.NewWriter(&compressed)
		_, _ = z.Write(rep.body) // a write to memory cannot fail
		_ = z.Close()
		rep.body = compressed.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(rep.status)
	_, _ = w.Write(rep.body) // fails only if the client has disconnected
}
