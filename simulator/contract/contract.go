// Package contract has upstreams that enforce the quotas of real APIs, by code
// of their own: the same policies, announced in the same headers and bodies, and
// refused in the same way. They are what the shipped configurations are tested
// against.
//
// What each contract holds is said at its constructor. Facts that no
// documentation gives are chosen so that a client has a harder time: a window of
// unknown kind slides, an answer of unknown cost is charged.
//
// Everything that arrives is also written down. What Stats reports is counted
// from that record and not by the counters that refuse, so a mistake in one of
// them shows as a difference.
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

// Options say how an upstream differs from the API as it is documented.
type Options struct {
	// Speed divides every window of 10 s and more, and multiplies what a bucket
	// that takes as long to fill restores: with 60, 5,000 calls an hour are 5,000
	// a minute. Shorter windows stay as they are. 0 means 1. Announced windows
	// and resets are those that are enforced.
	Speed float64
	// Latency is waited between judging a call and answering it, evenly drawn.
	// What is refused is answered at once.
	Latency simulator.Range
	// MaxExtraLatency holds back every answer for up to so long in addition. What headers and
	// bodies say is as of when the call was judged.
	MaxExtraLatency time.Duration
	// Skew is by how much the upstream's clock is ahead: its Date, its epochs and
	// where its days begin.
	Skew time.Duration
	// Misbehave turns on what real upstreams do beside their documentation.
	Misbehave map[Switch]float64
	// Seed chooses the content, and what chance decides.
	Seed uint64
}

// contract is one API. Its functions are called under the upstream's lock.
type contract struct {
	// charges says what a call is charged, in the order in which it is refused.
	charges func(*call) []charge
	// setHeaders writes what every answer says of the quotas; nil for nothing.
	setHeaders func(http.Header, *decision)
	refuse     func(*call, *decision) reply
	respond    func(*call, *decision) reply
	// chargeForReply says what a call is charged for its answer; nil for nothing.
	chargeForReply func(*call, reply) []charge
}

var contracts = map[string]func(*policyMaker) contract{
	"court": court, "data-go-kr": dataGoKr, "discord": discord, "github-graphql": githubGraphQL, "github-rest": githubREST,
	"hubspot": hubspot, "ietf": ietf, "jira": jira, "nexon-development": nexonDevelopment, "nexon-service": nexonService,
	"openai": openai, "reddit": reddit, "riot": riot, "shopify-graphql": shopifyGraphQL, "shopify-rest": shopifyREST, "stripe": stripe,
}

// Names lists the contracts.
func Names() []string { return slices.Sorted(maps.Keys(contracts)) }

// Upstream is an http.Handler that is safe for concurrent use. It starts no
// goroutine.
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

// New returns an upstream under the named contract. An unknown name, a switch
// that means nothing to the contract, and bounds that are negative or exchanged
// are errors.
func New(name string, o Options) (*Upstream, error) {
	build, known := contracts[name]
	if !known {
		return nil, fmt.Errorf("there is no contract %q; there are %s", name, strings.Join(Names(), ", "))
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Speed < 0 {
		return nil, fmt.Errorf("speed is %v; it must be above 0, and 60 makes a minute of an hour", o.Speed)
	}
	if o.Latency.Min < 0 || o.Latency.Max < o.Latency.Min || o.MaxExtraLatency < 0 {
		return nil, fmt.Errorf("latency is %v to %v and late %v; they need 0 <= min <= max and 0 <= late", o.Latency.Min, o.Latency.Max, o.MaxExtraLatency)
	}
	if err := checkSwitches(o.Misbehave, name); err != nil {
		return nil, err
	}
	m := &policyMaker{speed: o.Speed, seed: o.Seed, switches: o.Misbehave, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	u := &Upstream{options: o, maker: m, contract: build(m), accounts: make(map[accountKey]*account), refusals: make(map[string]int)}
	return u, nil
}

// charge is what a call is charged by one policy.
type charge struct {
	policy *policy
	scope  string
	cost   float64
	need   float64 // what must be there, if that is more than the cost
}

// accountKey says whose units of which policy they are.
type accountKey struct {
	policy *policy
	scope  string
}

// account is what a scope has of a policy, and the record of what it took.
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

// accountState is how an account stands when a call has been judged.
type accountState struct {
	policy      *policy
	remaining   float64
	reset       time.Time // when it is whole again, or its window ends
	availableAt time.Time // of what refuses: when it would not
	exceeded    bool
}

// used is what the account has given.
func (s accountState) used() float64 { return s.policy.limit - s.remaining }

// decision is what was decided about a call.
type decision struct {
	at        time.Time
	states    []accountState // by the order of the demands
	refusedBy *accountState  // the first that refuses; nil if the call is accepted
}

// state returns how the account of a policy stands.
func (v *decision) state(p *policy) *accountState {
	for i := range v.states {
		if v.states[i].policy == p {
			return &v.states[i]
		}
	}
	return nil
}

// untilAvailable is how long until nothing that refuses would.
func (v *decision) untilAvailable() time.Duration {
	var longest time.Duration
	for _, s := range v.states {
		if s.exceeded {
			longest = max(longest, s.availableAt.Sub(v.at))
		}
	}
	return longest
}

// decide takes all that a call demands or, when any of it isn't there, nothing
// but what strict policies charge for a refusal.
func (u *Upstream) decide(c *call, demands []charge) *decision {
	v := &decision{at: c.at, states: make([]accountState, len(demands))}
	for i, d := range demands {
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
	for i, d := range demands {
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

// applyCharges adds what is known only with the answer, and gives back what was held.
func (u *Upstream) applyCharges(at time.Time, demands []charge) {
	for _, d := range demands {
		a := u.account(d.policy, d.scope)
		a.counter.take(at, d.cost)
		a.record(at, d.cost, false)
	}
}
