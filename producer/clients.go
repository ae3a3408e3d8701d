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
	// MinOutstanding is how many HIGH requests of a client may be outstanding, however
	// many clients are active and however slow the source is.
	MinOutstanding = 10
	// activeTTL is how long a client counts as active after its last request ended.
	activeTTL = 5 * time.Second
	// refusalTTL is how long a process remembers that Redis has refused a client. A
	// client that goes on asking costs one Redis call a request meanwhile, and no lock.
	refusalTTL = 100 * time.Millisecond
	// maxRefusals bounds the clients that are remembered.
	maxRefusals = 10_000
)

// Bound is how much one client may ask of one source. All processes that publish for
// the source share the counts in Redis. The zero value is no bound.
type Bound struct {
	// Outstanding is how many HIGH requests of the client may be outstanding while no
	// other client is active; n active clients get an n-th each, and MinOutstanding at
	// least. 0: any number.
	Outstanding int
	// Window is the time in which the source answers Outstanding requests: a client that
	// has more than its share is told to come back when they should have ended.
	Window time.Duration
	// Lease is how long a request counts at most. A worker releases it when it ends.
	Lease time.Duration
	// NewKeys is how many entities without a snapshot the client may ask for at once, and
	// NewKeyInterval is the time in which one more is restored. 0: any number.
	NewKeys        int
	NewKeyInterval time.Duration
}

// isBounded reports whether the wish counts on its client's account.
func (w Request) isBounded() bool {
	return w.Client != "" && w.Lane == schemas.High && (w.Bound.Outstanding > 0 || (w.New && w.Bound.NewKeys > 0))
}

// countedClient returns the client for whom Redis counts the wish, if it is published.
func (w Request) countedClient() string {
	if w.isBounded() && w.Bound.Outstanding > 0 {
		return w.Client
	}
	return ""
}

// Refusal is why a client may publish nothing more now.
type Refusal struct {
	Outcome Outcome       // TooManyOutstanding or TooManyNewKeys
	Max     int           // the client's share of Outstanding, or NewKeys
	Window  time.Duration // in which so many new keys are restored
	After   time.Duration
}

// account is one client of one source.
type account struct{ source, client string }

func (w Request) account() account { return account{w.Entity.Source, w.Client} }

// clientsKey is the sorted set of a source's active clients. The keys of its clients
// have the same hash tag: one script changes both.
func clientsKey(source string) string { return "clients:{" + source + "}" }

func (a account) key() string { return clientsKey(a.source) + ":" + a.client }

// outstandingMember names one outstanding request of a client: each record has its own number.
func outstandingMember(e schemas.Entity, number int64) string {
	return fmt.Sprintf("%d %s/%s", number, e.Facet, e.Key)
}

// admit refuses the wishes that coalescing lets publish and that are beyond their
// client's bound: their locks are rolled back. It costs one round trip for each client
// of the wishes that publish, one more if any is refused, and none otherwise. Wishes of other
// clients that a refused one covered are then decided again.
func (c *Coalescer) admit(ctx context.Context, wishes []Request, results []Result) {
	var accounts []account
	of := map[account][]int{}
	for i, w := range wishes {
		if results[i].isPublished() && w.isBounded() {
			if of[w.account()] == nil {
				accounts = append(accounts, w.account())
			}
			of[w.account()] = append(of[w.account()], i)
		}
	}
	if len(accounts) == 0 {
		return
	}
	calls := make([]eval.Call, len(accounts))
	for n, a := range accounts {
		calls[n] = admitCall(a, wishes, results, of[a])
	}
	var refused []ack
	for n, cmd := range runScript(ctx, c.rdb, lua.ClientAdmit, calls) {
		reply, err := cmd.Int64Slice()
		if some := of[accounts[n]]; err == nil && len(reply) != 4+len(some) {
			err = fmt.Errorf("client_admit returned %d values, not %d", len(reply), 4+len(some))
		}
		for k, i := range of[accounts[n]] {
			number := results[i].Number
			switch {
			case err != nil: // whether it was counted is unknown: the lease ends that
				results[i] = Result{Err: fmt.Errorf("count %s for its client: %w", wishes[i].Entity, err)}
			case reply[4+k] == 0:
				continue
			default:
				r := wishes[i].Bound.newRefusal(reply[4+k], reply[0], reply[1], time.Duration(reply[3])*time.Millisecond)
				c.refusals.add(accounts[n], r)
				results[i] = r.result()
			}
			refused = append(refused, ack{entity: wishes[i].Entity, lane: wishes[i].Lane, number: number, err: results[i].Err, refused: true})
		}
	}
	if len(refused) == 0 {
		return
	}
	if _, err := c.confirmOrRollBack(ctx, refused); err == nil { // after an error a lock may stay; it ends by itself
		c.reacquire(ctx, wishes, results, refused)
	}
}

// reacquire decides again about wishes that the locks of refused ones covered: nothing was
// published for those locks. Another client may be refused in turn, so this repeats as
// often as one batch has clients for one entity.
func (c *Coalescer) reacquire(ctx context.Context, wishes []Request, results []Result, refused []ack) {
	gone := map[schemas.Entity]int64{} // numbers of the locks that were rolled back
	for _, a := range refused {
		gone[a.entity] = a.number
	}
	var at []int
	var some []Request
	for i, w := range wishes {
		if number, rolledBack := gone[w.Entity]; rolledBack && results[i].Outcome == Pending && results[i].Number == number {
			at, some = append(at, i), append(some, w)
		}
	}
	if len(some) == 0 {
		return
	}
	again := c.acquire(ctx, some)
	c.admit(ctx, some, again)
	for n, i := range at {
		results[i] = again[n]
	}
}

// admitCall is the call of client_admit for some wishes of one account, which have one
// bound each facet; that of the first holds for all.
func admitCall(a account, wishes []Request, results []Result, some []int) eval.Call {
	b := wishes[some[0]].Bound
	args := []any{
		a.client, b.Outstanding, MinOutstanding, max(b.Lease, time.Second).Milliseconds(), activeTTL.Milliseconds(),
		b.NewKeyInterval.Microseconds(), b.NewKeys,
	}
	for _, i := range some {
		kind := "K"
		if wishes[i].New && b.NewKeys > 0 {
			kind = "N"
		}
		args = append(args, kind+outstandingMember(wishes[i].Entity, results[i].Number))
	}
	return eval.Call{Key: clientsKey(a.source), More: []string{a.key(), a.key() + ":new"}, Args: args}
}

// newRefusal reads a verdict of client_admit: the client has so many outstanding of its
// share, and one new key is admitted after wait.
func (b Bound) newRefusal(verdict, share, outstanding int64, wait time.Duration) Refusal {
	if verdict == 2 {
		return Refusal{TooManyNewKeys, b.NewKeys, time.Duration(b.NewKeys) * b.NewKeyInterval, wait}
	}
	// At its fair pace the client's share ends within the window.
	excess := float64(outstanding-share+1) / math.Max(1, float64(share))
	return Refusal{Outcome: TooManyOutstanding, Max: int(share), After: min(b.Lease, time.Duration(excess*float64(b.Window)))}
}

// result is what a wish comes to that is refused.
func (r Refusal) result() Result {
	return Result{Outcome: r.Outcome, Until: time.Now().Add(r.After).UTC(), Refusal: &r}
}

// ReleaseOutstanding ends the counts of requests that have ended. It may be repeated; what it
// misses ends with its lease.
func (c *Coalescer) ReleaseOutstanding(ctx context.Context, ended []schemas.Outstanding) error {
	var calls []eval.Call
	at := map[account]int{}
	for _, o := range ended {
		if o.Client == "" {
			continue
		}
		a := account{o.Entity.Source, o.Client}
		n, known := at[a]
		if !known {
			n = len(calls)
			at[a] = n
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
			return fmt.Errorf("discharge the requests of clients: %w", err)
		}
	}
	return nil
}

// releaseFailed ends the counts of records that Kafka has not acknowledged.
func (p *Producer) releaseFailed(ctx context.Context, acks []ack) {
	var failed []schemas.Outstanding
	for _, a := range acks {
		if a.err != nil && a.client != "" {
			failed = append(failed, schemas.Outstanding{Client: a.client, Entity: a.entity, Number: a.number})
		}
	}
	if err := p.ReleaseOutstanding(ctx, failed); err != nil {
		p.log.Warn("failed publishes stay counted for their clients until the lease ends", "requests", len(failed), "err", err)
	}
}

// refusalCache remembers for refusalTTL whom Redis has refused.
type refusalCache struct {
	mu    sync.Mutex
	now   func() time.Time
	all   map[refusalKey]cachedRefusal
	swept time.Time // when the ended ones were last deleted because the map was full
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

func (r *refusalCache) add(a account, why Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if len(r.all) >= maxRefusals && now.Sub(r.swept) >= refusalTTL { // at most ten sweeps a second
		r.swept = now
		for k, v := range r.all {
			if !now.Before(v.until) {
				delete(r.all, k)
			}
		}
	}
	if len(r.all) < maxRefusals {
		r.all[refusalKey{a, why.Outcome}] = cachedRefusal{why, now.Add(refusalTTL)}
	}
}

// of returns why the wish's client was refused a moment ago, if that concerns the wish.
func (r *refusalCache) of(w Request) (why Refusal, known bool) {
	if !w.isBounded() {
		return Refusal{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, outcome := range []Outcome{TooManyOutstanding, TooManyNewKeys} {
		k := refusalKey{w.account(), outcome}
		v, noted := r.all[k]
		if !noted || (outcome == TooManyNewKeys && !w.New) {
			continue
		}
		if r.now().Before(v.until) {
			return v.Refusal, true
		}
		delete(r.all, k)
	}
	return Refusal{}, false
}
