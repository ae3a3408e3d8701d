package contract

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/simulator"
)

// Options configure how an upstream differs from the documented API.
type Options struct {
	// Speed divides the length of every window of 10 s or more. With 60, a limit of 5,000 calls
	// an hour becomes 5,000 a minute. A bucket that takes 10 s or more to fill is restored
	// faster by the same factor. 0 means 1. The windows and resets in responses are shortened
	// too.
	Speed float64
	// Latency delays responses by a uniformly distributed time. Refusals are not delayed.
	Latency simulator.Range
	// MaxExtraLatency delays each response, also a refusal, by an additional random time up to this
	// value. Headers and bodies report the limits as of the time before the delay.
	MaxExtraLatency time.Duration
	// Skew is the duration by which the upstream's clock is ahead of the real time. It affects
	// Date headers, epochs and the beginning of days.
	Skew time.Duration
	// Misbehave enables known deviations of real upstreams from their documentation.
	Misbehave map[Switch]float64
	// Seed selects the content and all random values.
	Seed uint64
}

// contract is the behaviour of one API. Its functions are called with Upstream.mu held.
type contract struct {
	// charges returns the charges for a call. If the call is refused, the first charge that exceeds
	// its limit is reported as the reason.
	charges func(*call) []charge
	// setHeaders writes the rate-limit headers of a response. It is nil for an API without such headers.
	setHeaders func(http.Header, *decision)
	refuse     func(*call, *decision) reply
	respond    func(*call, *decision) reply
	// chargeForReply returns charges that depend on the response. It is nil for an API without such
	// charges.
	chargeForReply func(*call, reply) []charge
}

var contracts = map[string]func(*policyMaker) contract{
	"court": court, "data-go-kr": dataGoKr, "discord": discord, "github-graphql": githubGraphQL, "github-rest": githubREST,
	"hubspot": hubspot, "ietf": ietf, "jira": jira, "nexon-development": nexonDevelopment, "nexon": nexonService,
	"openai": openai, "reddit": reddit, "riot": riot, "shopify-graphql": shopifyGraphQL, "shopify-rest": shopifyREST, "stripe": stripe,
}

// Names returns the names of all contracts, sorted.
func Names() []string { return slices.Sorted(maps.Keys(contracts)) }

// Upstream is an http.Handler that enforces one contract. It is safe for concurrent use and
// starts no goroutines.
type Upstream struct {
	options  Options
	contract contract
	maker    *policyMaker

	mu          sync.Mutex
	accounts    map[accountKey]*account
	inFlight    int
	refusals    map[string]int
	violations  []string
	arrivals    int
	maxInFlight int
	first, last time.Time
}

// New returns an upstream with the named contract. It returns an error for an unknown name, for
// a switch that the contract does not support, and for invalid options.
func New(name string, o Options) (*Upstream, error) {
	build, known := contracts[name]
	if !known {
		return nil, fmt.Errorf("unknown contract %q; known contracts are %s", name, strings.Join(Names(), ", "))
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Speed < 0 {
		return nil, fmt.Errorf("speed is %v; it must be above 0; 60 shortens an hour to a minute", o.Speed)
	}
	if o.Latency.Min < 0 || o.Latency.Max < o.Latency.Min || o.MaxExtraLatency < 0 {
		return nil, fmt.Errorf("latency is %v to %v and extra latency %v; need 0 <= min <= max and extra latency >= 0", o.Latency.Min, o.Latency.Max, o.MaxExtraLatency)
	}
	if err := checkSwitches(o.Misbehave, name); err != nil {
		return nil, err
	}
	m := &policyMaker{speed: o.Speed, seed: o.Seed, switches: o.Misbehave, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	u := &Upstream{options: o, maker: m, contract: build(m), accounts: make(map[accountKey]*account), refusals: make(map[string]int)}
	return u, nil
}

// charge is the cost of a call for one policy and scope.
type charge struct {
	policy *policy
	scope  string
	cost   float64
	need   float64 // number of units that must be available to accept the call; has no effect if less than cost
}

// accountKey identifies an account, the counter of one policy for one value of its scope, such as one
// API key.
type accountKey struct {
	policy *policy
	scope  string
}

// account contains the counter of one policy for one scope, and the log of the charges.
type account struct {
	accountKey
	counter counter
	log     []logEntry
}

func (u *Upstream) account(p *policy, scope string) *account {
	h := accountKey{p, strings.Clone(scope)}
	a := u.accounts[h]
	if a == nil {
		a = &account{accountKey: h, counter: p.counter()}
		u.accounts[h] = a
	}
	return a
}

// accountState is the state of an account after the decision about a call.
type accountState struct {
	policy      *policy
	remaining   float64
	reset       time.Time // when all units are available again; for fixed and aligned windows, when the window ends
	availableAt time.Time // when the policy would accept the call
	exceeded    bool
}

// used returns the units of the limit that are not available now.
func (s accountState) used() float64 { return s.policy.limit - s.remaining }

// decision is the result of decide for one call.
type decision struct {
	at        time.Time
	states    []accountState // one state for each charge of the call, in the order of the charges
	refusedBy *accountState  // state of the first policy that the call exceeds; nil if the call is accepted
}

// state returns the state of the policy's account, or nil if the call has no charge for the policy.
func (v *decision) state(p *policy) *accountState {
	for i := range v.states {
		if v.states[i].policy == p {
			return &v.states[i]
		}
	}
	return nil
}

// untilAvailable returns the time until all exceeded policies would accept the call.
func (v *decision) untilAvailable() time.Duration {
	var longest time.Duration
	for _, s := range v.states {
		if s.exceeded {
			longest = max(longest, s.availableAt.Sub(v.at))
		}
	}
	return longest
}

// decide accepts a call if all of its charges are within their limits, and then takes all
// charges. If it refuses the call, it takes only the charges of strict policies.
func (u *Upstream) decide(c *call, charges []charge) *decision {
	v := &decision{at: c.at, states: make([]accountState, len(charges))}
	for i, d := range charges {
		a := u.account(d.policy, d.scope)
		s := accountState{policy: d.policy, availableAt: c.at}
		if need := max(d.need, d.cost); a.counter.remaining(c.at) < need-tolerance {
			s.exceeded, s.availableAt = true, a.counter.availableAt(c.at, need)
		}
		v.states[i] = s
		if s.exceeded && v.refusedBy == nil {
			v.refusedBy = &v.states[i]
		}
	}
	for i, d := range charges {
		a, s := u.account(d.policy, d.scope), &v.states[i]
		if v.refusedBy == nil || d.policy.strict {
			a.counter.take(c.at, d.cost)
		}
		if v.refusedBy == nil || d.policy.strict || s.exceeded {
			a.record(c.at, d.cost, v.refusedBy != nil)
		}
		s.remaining, s.reset = max(0, a.counter.remaining(c.at)), a.counter.reset(c.at)
	}
	return v
}

// applyCharges applies charges that are added after the decision about a call. A charge with a
// negative cost is a refund.
func (u *Upstream) applyCharges(at time.Time, charges []charge) {
	for _, d := range charges {
		a := u.account(d.policy, d.scope)
		a.counter.take(at, d.cost)
		a.record(at, d.cost, false)
	}
}
