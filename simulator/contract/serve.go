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
	// settle is charged when the answer is written, or given back if negative.
	settle []demand
	mute   bool // doesn't announce anything
	free   bool // is not penalised
}

const (
	jsonType = "application/json"
	htmlType = "text/html;charset=UTF-8"
	// violationsKept is how many refusals are told of in words.
	violationsKept = 20
	longestBody    = 1 << 20
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

// put sets a header as the API spells it, which is not always Go's way.
func put(h http.Header, name, value string) { h[name] = []string{value} }

// object is a JSON object.
type object map[string]any

// record is the document of whatever a call asks for: the same for the same
// path, query and body.
func (m *maker) record(c *call) object {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s %s?%s %s", m.seed, c.Method, c.URL.Path, c.URL.RawQuery, c.body)
	return object{"path": c.URL.Path, "value": strconv.FormatUint(h.Sum64(), 16)}
}

// etag is the validator of what a call asks for.
func (m *maker) etag(c *call) string { return `"` + m.record(c)["value"].(string) + `"` }

// secret is the credential of a call, without its scheme.
func secret(c *call) string {
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

// peer is the address a call came from.
func peer(c *call) string {
	host, _, _ := net.SplitHostPort(c.RemoteAddr)
	return host
}

// segments are the first so many parts of the path.
func segments(c *call, n int) string {
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

func (u *Upstream) now() time.Time { return time.Now().Add(u.o.Skew) }

// ServeHTTP answers /_stats and /_reset for who tries it, and judges all else.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_") {
		u.serveOperator(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestBody))
	if err != nil {
		http.Error(w, "the body could not be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	v := u.arrive(&call{Request: r, body: body})
	waited := wait(r.Context(), v.wait)
	// Before it is answered: who has the answer may make the next call at once.
	u.leave(v)
	if waited {
		v.reply.write(w, r, u.maker.switches[Gzip] > 0)
	}
}

// visit is a call from its arrival to its answer.
type visit struct {
	reply reply
	held  []demand // the places it takes
	wait  time.Duration
}

// arrive judges a call and makes up its answer. The clock is read inside the
// lock, so that times never run backwards along the record.
func (u *Upstream) arrive(c *call) visit {
	u.mu.Lock()
	defer u.mu.Unlock()
	c.at = u.now()
	u.last = c.at.Add(-u.o.Skew)
	if u.arrivals == 0 {
		u.first = u.last
	}
	u.arrivals++
	u.inFlight++
	u.maxInFlight = max(u.maxInFlight, u.inFlight)

	demands := u.contract.demands(c)
	v := u.judge(c, demands)
	out := visit{wait: u.upTo(u.o.Late)}
	if v.refused != nil {
		u.complain(c, v)
	} else {
		out.wait += u.o.Latency.Min + u.upTo(u.o.Latency.Max-u.o.Latency.Min)
		for _, d := range demands {
			if d.policy.kind == places {
				out.held = append(out.held, demand{policy: d.policy, scope: d.scope, cost: -d.cost})
			}
		}
	}
	out.reply = u.render(c, v)
	return out
}

// complain counts a refusal and puts it in words.
func (u *Upstream) complain(c *call, v *verdict) {
	p := v.refused.policy
	u.refusals[p.name]++
	if len(u.violations) < violationsKept {
		u.violations = append(u.violations, fmt.Sprintf("%v after the first call: %s %s was over %q, %v %s (%s), of which %v were left",
			u.last.Sub(u.first), c.Method, c.URL.Path, p.name, p.limit, p.unit, p.span(), tidy(v.refused.left)))
	}
}

func (u *Upstream) leave(v visit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.inFlight--
	at := u.now()
	u.settle(at, v.held)
	u.settle(at, v.reply.settle)
}

func (u *Upstream) upTo(most time.Duration) time.Duration {
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
