package producer

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/schemas"
)

const (
	// MinOutstanding is the number of outstanding HIGH requests that every client may have at
	// least, however many clients are active and however slow the source is.
	MinOutstanding = 10
	// activeTTL is how long a client counts as active after its last request ended.
	activeTTL = 5 * time.Second
	// refusalTTL is how long a process remembers that a client has reached its maximum of
	// outstanding requests or of new keys. Meanwhile a request of that client takes no lock. Each
	// such request costs only one Redis call, which finds out whether another request covers it.
	refusalTTL = 100 * time.Millisecond
	// maxRefusals is the maximum number of cached refusals.
	maxRefusals = 10_000
)

// Bound limits what one client may request from one source. The counts are in Redis and are
// shared by all processes that publish for the source. The zero value sets no limit.
type Bound struct {
	// Outstanding is the maximum number of outstanding HIGH requests of the client while no other
	// client is active. With n active clients each client may have 1/n of this number, but at least
	// MinOutstanding. 0 means no limit.
	Outstanding int
	// Window is the time that the source needs to process Outstanding requests. The Retry-After of
	// a client that exceeds its share is calculated from Window.
	Window time.Duration
	// Lease is how long a request counts as outstanding if no worker releases it earlier.
	Lease time.Duration
	// NewKeys is how many entities without a snapshot the client may request at once. One more such
	// entity is allowed after each NewKeyInterval. 0 means no limit.
	NewKeys        int
	NewKeyInterval time.Duration
}

// isBounded reports whether the request counts toward a limit of its client.
func (req Request) isBounded() bool {
	return req.Client != "" && req.Lane == schemas.High && (req.Bound.Outstanding > 0 || (req.New && req.Bound.NewKeys > 0))
}

// countedClient returns the client whose count of outstanding requests includes this request
// after it is published. It returns "" if the request does not count for any client.
func (req Request) countedClient() string {
	if req.isBounded() && req.Bound.Outstanding > 0 {
		return req.Client
	}
	return ""
}

// Refusal describes why a client may not publish more requests now.
type Refusal struct {
	Outcome Outcome       // the exceeded limit: TooManyOutstanding or TooManyNewKeys
	Max     int           // the client's share of Bound.Outstanding, or Bound.NewKeys
	Window  time.Duration // time in which the client may request Max further new keys; 0 if Outcome is TooManyOutstanding
	After   time.Duration
}

// account identifies one client of one source.
type account struct{ source, client string }

func (req Request) account() account { return account{req.Entity.Source, req.Client} }

// clientsKey returns the Redis key of the sorted set of a source's active clients. The keys of all
// clients of a source have the source as hash tag, because one script changes several of the keys.
func clientsKey(source string) string { return "clients:{" + source + "}" }

func (a account) key() string { return clientsKey(a.source) + ":" + a.client }

// outstandingMember returns the sorted-set member of one outstanding request. It is unique
// because each record has its own number.
func outstandingMember(e schemas.Entity, number int64) string {
	return fmt.Sprintf("%d %s/%s", number, e.Facet, e.Key)
}

// admit applies the clients' limits to the requests that coalescing decided to publish. It rolls back
// the locks of refused requests, and decides again about the requests of other clients that the
// rolled-back locks covered. Cost: one round trip if a request of any client would be published, and
// at least one more if such a request is refused.
func (c *Coalescer) admit(ctx context.Context, requests []Request, results []Result) {
	var accounts []account
	byAccount := map[account][]int{}
	for i, req := range requests {
		if results[i].Published() && req.isBounded() {
			if byAccount[req.account()] == nil {
				accounts = append(accounts, req.account())
			}
			byAccount[req.account()] = append(byAccount[req.account()], i)
		}
	}
	if len(accounts) == 0 {
		return
	}
	calls := make([]eval.Call, len(accounts))
	for n, a := range accounts {
		calls[n] = admitCall(a, requests, results, byAccount[a])
	}
	var refusedAcks []ack
	for n, cmd := range runScript(ctx, c.rdb, lua.ClientAdmit, calls) {
		reply, err := cmd.Int64Slice()
		if indexes := byAccount[accounts[n]]; err == nil && len(reply) != 4+len(indexes) {
			err = fmt.Errorf("client_admit returned %d values, not %d", len(reply), 4+len(indexes))
		}
		for k, i := range byAccount[accounts[n]] {
			number := results[i].Number
			switch {
			case err != nil: // Redis may have counted the request as outstanding before the error; the request then stops counting when its lease expires
				results[i] = Result{Err: fmt.Errorf("count %s toward the limit of its client: %w", requests[i].Entity, err)}
			case reply[4+k] == 0:
				continue
			default:
				r := requests[i].Bound.newRefusal(reply[4+k], reply[0], reply[1], time.Duration(reply[3])*time.Millisecond)
				c.refusals.add(accounts[n], r)
				results[i] = r.result()
			}
			refusedAcks = append(refusedAcks, ack{entity: requests[i].Entity, lane: requests[i].Lane, number: number, err: results[i].Err, refused: true})
		}
	}
	if len(refusedAcks) == 0 {
		return
	}
	if _, err := c.confirmOrRollBack(ctx, refusedAcks); err == nil { // no error: the locks of all refused requests are rolled back; after an error, the remaining locks expire
		c.reacquire(ctx, requests, results, refusedAcks)
	}
}

// reacquire decides again about requests that were covered by locks of refused requests, because
// nothing was published for the refused requests. One of these requests then takes the lock, but its
// client may be refused too. So reacquire may call itself again, at most once per client of an entity.
func (c *Coalescer) reacquire(ctx context.Context, requests []Request, results []Result, refusedAcks []ack) {
	rolledBack := map[schemas.Entity]int64{} // numbers of the locks that were rolled back
	for _, a := range refusedAcks {
		rolledBack[a.entity] = a.number
	}
	var indexes []int
	var uncovered []Request
	for i, req := range requests {
		if number, ok := rolledBack[req.Entity]; ok && results[i].Outcome == Pending && results[i].Number == number {
			indexes, uncovered = append(indexes, i), append(uncovered, req)
		}
	}
	if len(uncovered) == 0 {
		return
	}
	decided := c.acquire(ctx, uncovered)
	c.admit(ctx, uncovered, decided)
	for n, i := range indexes {
		results[i] = decided[n]
	}
}

// admitCall returns the call of the Lua script client_admit for the requests of one account. All
// facets of a source have the same bound, so the bound of the first request applies to all.
func admitCall(a account, requests []Request, results []Result, indexes []int) eval.Call {
	b := requests[indexes[0]].Bound
	args := []any{
		a.client, b.Outstanding, MinOutstanding, max(b.Lease, time.Second).Milliseconds(), activeTTL.Milliseconds(),
		b.NewKeyInterval.Microseconds(), b.NewKeys,
	}
	for _, i := range indexes {
		kind := "K"
		if requests[i].New && b.NewKeys > 0 {
			kind = "N"
		}
		args = append(args, kind+outstandingMember(requests[i].Entity, results[i].Number))
	}
	return eval.Call{Key: clientsKey(a.source), More: []string{a.key(), a.key() + ":new"}, Args: args}
}

// newRefusal decodes one verdict of the Lua script client_admit. `outstanding` is the number of
// outstanding requests that the client has now, and `share` is its maximum number. `wait` is the
// time until one more new key is allowed.
func (b Bound) newRefusal(verdict, share, outstanding int64, wait time.Duration) Refusal {
	if verdict == 2 {
		return Refusal{TooManyNewKeys, b.NewKeys, time.Duration(b.NewKeys) * b.NewKeyInterval, wait}
	}
	// The client may retry when so many of its requests have ended that one more fits its share.
	// The source needs the time Window to process as many requests as the share. Example: with 29
	// outstanding requests and a share of 20, ten requests must end first, which takes half of
	// Window.
	excess := float64(outstanding-share+1) / math.Max(1, float64(share))
	return Refusal{Outcome: TooManyOutstanding, Max: int(share), After: min(b.Lease, time.Duration(excess*float64(b.Window)))}
}

// result returns the Result of a refused request.
func (r Refusal) result() Result {
	return Result{Outcome: r.Outcome, Until: time.Now().Add(r.After).UTC(), Refusal: &r}
}

// ReleaseOutstanding removes ended requests from their clients' outstanding counts. It is
// idempotent. A request that is not removed stops counting when its lease expires.
func (c *Coalescer) ReleaseOutstanding(ctx context.Context, ended []schemas.Outstanding) error {
	var calls []eval.Call
	callIndex := map[account]int{}
	for _, o := range ended {
		if o.Client == "" {
			continue
		}
		a := account{o.Entity.Source, o.Client}
		n, ok := callIndex[a]
		if !ok {
			n = len(calls)
			callIndex[a] = n
			calls = append(calls, eval.Call{
				Key: clientsKey(a.source), More: []string{a.key()}, Args: []any{a.client, activeTTL.Milliseconds()},
			})
		}
		calls[n].Args = append(calls[n].Args, outstandingMember(o.Entity, o.Number))
	}
	if len(calls) == 0 {
		return nil
	}
	for _, cmd := range runScript(ctx, c.rdb, lua.ClientRelease, calls) {
		if err := cmd.Err(); err != nil {
			return fmt.Errorf("release the outstanding requests of clients: %w", err)
		}
	}
	return nil
}

// releaseFailed removes the requests that Kafka did not acknowledge from the outstanding counts of
// their clients.
func (p *Producer) releaseFailed(ctx context.Context, acks []ack) {
	var failed []schemas.Outstanding
	for _, a := range acks {
		if a.err != nil && a.client != "" {
			failed = append(failed, schemas.Outstanding{Client: a.client, Entity: a.entity, Number: a.number})
		}
	}
	if err := p.ReleaseOutstanding(ctx, failed); err != nil {
		p.log.Warn("outstanding requests of clients not released after a failed publish; these requests count until their leases expire", "requests", len(failed), "err", err)
	}
}

// refusalCache caches the refusals of clients for refusalTTL, so that further requests of these
// clients take no lock.
type refusalCache struct {
	mu    sync.Mutex
	now   func() time.Time
	all   map[refusalKey]cachedRefusal
	swept time.Time // when expired entries were last deleted because the map was full
}

type refusalKey struct {
	account
	outcome Outcome
}

type cachedRefusal struct {
	Refusal
	until time.Time
}

func newRefusalCache() *refusalCache {
	return &refusalCache{now: time.Now, all: map[refusalKey]cachedRefusal{}}
}

func (r *refusalCache) add(a account, refusal Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if len(r.all) >= maxRefusals && now.Sub(r.swept) >= refusalTTL { // expired entries are deleted at most ten times per second
		r.swept = now
		for k, v := range r.all {
			if !now.Before(v.until) {
				delete(r.all, k)
			}
		}
	}
	if len(r.all) < maxRefusals {
		r.all[refusalKey{a, refusal.Outcome}] = cachedRefusal{refusal, now.Add(refusalTTL)}
	}
}

// of returns the cached refusal that applies to the request, if there is one.
func (r *refusalCache) of(req Request) (refusal Refusal, ok bool) {
	if !req.isBounded() {
		return Refusal{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, outcome := range []Outcome{TooManyOutstanding, TooManyNewKeys} {
		k := refusalKey{req.account(), outcome}
		v, cached := r.all[k]
		if !cached || (outcome == TooManyNewKeys && !req.New) {
			continue
		}
		if r.now().Before(v.until) {
			return v.Refusal, true
		}
		delete(r.all, k)
	}
	return Refusal{}, false
}
