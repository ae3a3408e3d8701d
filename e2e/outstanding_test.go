package e2e

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
)

// maxOutstanding is an upper limit for the number of outstanding requests of a single client: the
// number of calls that the quota of newBounded (40 calls a second) allows in two seconds.
const maxOutstanding = 2 * 40

// bounded is an installation that limits the outstanding requests of each client. A request is
// outstanding from its acceptance until it has ended.
type bounded struct {
	*fleet
	api   string
	redis *redis.Client
}

// newBounded returns an installation with a quota of 40 calls a second and a query service.
func newBounded(t *testing.T) *bounded {
	t.Helper()
	f := newSite(t)
	f.Token = rand.Text() + rand.Text()
	f.Env = []string{"FRESHET_TOKEN=" + f.Token}
	f.Edits = []string{"limit: 500, window: 1s, target: 450, highReserve: 100", "limit: 50, window: 1s, target: 40, highReserve: 10"}
	f.prepare("--latency", "30ms-300ms")
	b := &bounded{fleet: f, redis: redis.NewClient(&redis.Options{Addr: f.Redis.Address})}
	f.OnClose(func() { _ = b.redis.Close() })
	b.api = f.query()
	return b
}

// as creates an API key with this name and returns a reader that uses it.
func (b *bounded) as(name string) harness.Reader {
	b.Helper()
	token, err := b.CreateKey(b.Context(), b.api, name, "read")
	b.check(err)
	r := b.reader(b.api)
	r.Client = &http.Client{Transport: harness.Bearer{Token: token}, Timeout: timeout}
	return r
}

// outstanding returns the number of outstanding requests of all clients in Redis.
func (b *bounded) outstanding() (n int64) {
	b.Helper()
	keys, err := b.redis.Keys(b.Context(), "clients:{"+b.Source+"}:*").Result()
	b.check(err)
	for _, key := range keys {
		if strings.HasSuffix(key, ":new") {
			continue
		}
		some, err := b.redis.ZCard(b.Context(), key).Result()
		b.check(err)
		n += some
	}
	return n
}

// refusal is the response to a client that has too many requests outstanding.
type refusal struct {
	status     int
	header     http.Header
	max        int // the limit in the header RateLimit-Policy
	Type, Code string
}

// untilRefused reads up to `limit` new keys until a read is refused. It returns the number of accepted
// reads and the refusal.
func (b *bounded) untilRefused(r harness.Reader, prefix string, limit int) (accepted int, got refusal) {
	b.Helper()
	for ; accepted < limit; accepted++ {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, fmt.Sprintf("%s/%s/%s-%d", r.API, r.Facet, prefix, accepted), http.NoBody)
		b.check(err)
		resp, err := r.Client.Do(req)
		b.check(err)
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		b.check(err)
		if resp.StatusCode == http.StatusAccepted {
			continue
		}
		got.status, got.header = resp.StatusCode, resp.Header
		if err := json.Unmarshal(text, &got); err != nil {
			b.Fatalf("read %d of %s: got %d %s, want 202 or a problem", accepted, prefix, resp.StatusCode, text)
		}
		_, _ = fmt.Sscanf(resp.Header.Get("RateLimit-Policy"), `"outstanding";q=%d`, &got.max)
		return accepted, got
	}
	b.Fatalf("%d reads of new keys were accepted, want a refusal before", limit)
	return 0, got
}

func TestOutstanding_RefusesOneClientAndServesOthers(t *testing.T) {
	t.Parallel()
	b := newBounded(t)
	flood, other := b.as("flood"), b.as("other")
	accepted, got := b.untilRefused(flood, "flood", 2*maxOutstanding)

	equal(t, "status", got.status, http.StatusTooManyRequests)
	equal(t, "type", got.Type, "urn:freshet:problem:too-many-outstanding")
	equal(t, "code", got.Code, "too-many-outstanding")
	equal(t, "Content-Type", got.header.Get("Content-Type"), "application/problem+json")
	equal(t, "limit in RateLimit-Policy", got.max, accepted)
	if after, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || after < 1 || after > 10 {
		t.Errorf("Retry-After: got %q, want a few seconds", got.header.Get("Retry-After"))
	}
	atLeast(t, "accepted before", accepted, maxOutstanding/2)
	atMost(t, "accepted before", accepted, maxOutstanding)
	equal(t, "outstanding requests in Redis", b.outstanding(), int64(accepted))

	reply, err := other.Read(t.Context(), "other-0", "")
	b.check(err)
	equal(t, "status of another client", reply.Status, http.StatusAccepted)
	b.worker()
	asked := time.Now()
	reply, err = other.Read(t.Context(), "other-1", "?wait=20s")
	b.check(err)
	t.Logf("another client behind %d requests of the flood: answered after %v", accepted, time.Since(asked).Round(time.Millisecond))
	equal(t, "freshness for another client behind the flood", reply.Freshness, "FRESH")
	b.untilStored(timeout, accepted+2)
	b.until(timeout, "an outstanding count of 0", func() bool { return b.outstanding() == 0 })
	if _, err := flood.Read(t.Context(), "flood-again", "?wait=20s"); err != nil {
		t.Errorf("the refused client, when its requests have ended: got %v, want an answer", err)
	}
}

func TestOutstanding_FollowsTheLiveQuota(t *testing.T) {
	t.Parallel()
	b := newBounded(t)
	_, before := b.untilRefused(b.as("before"), "before", 2*maxOutstanding)
	b.must("settings", "set", "second.limit=30", "second.target=20", "--source", b.Source, "--addr", b.api)
	b.until(timeout, "the log line of the query service", func() bool {
		text, err := os.ReadFile(filepath.Join(b.Dir, "query.log"))
		b.check(err)
		return strings.Contains(string(text), `msg="client limits changed"`)
	})
	_, after := b.untilRefused(b.as("after"), "after", 2*maxOutstanding)
	atMost(t, "limit of a second active client under half of the quota", after.max, before.max/4)
}
