// Package contract contains upstreams that enforce the quotas of real APIs. They apply the same
// policies, report them in the same headers and bodies, and refuse calls in the same way. The
// shipped presets are tested against them.
//
// The comment of each constructor describes its contract. Where an API is not documented, the
// stricter behaviour is chosen: a window of unknown kind slides, and a response of unknown cost
// is charged.
//
// # How a call is decided
//
//	receive -> charges -> decide -> accepted -> respond -> delay -> finish -> reply
//	                           \--> refused  -> refuse  -> delay -> finish -> reply
//
//	step    | effect on the accounts
//	charges | none; lists the policies that apply, and the cost for each
//	decide  | accepted: all charges are taken; refused: only charges of strict policies
//	respond | may add charges or refunds that depend on the response
//	finish  | applies these charges and refunds; the call is no longer in flight
//
// Kinds of policies:
//
//	kind        | counts
//	sliding     | units in any closed window
//	fixed       | units in a window that begins with the first call after the previous window
//	aligned     | units in consecutive windows, such as hours of the clock or calendar days
//	bucket      | units taken from a bucket that is restored continuously
//	concurrency | calls in flight
//	minInterval | time since the previous call
//
// All charges are also logged. Stats are computed from these logs and not from the counters that
// refuse calls. An error in the logs or in the counters therefore shows as a difference between the
// statistics and the refusals.
//
// # Example
//
// The policy "tokens" of openai is a bucket of 30,000 tokens that regains 500 tokens a second. A call
// with a body of 400 bytes and max_tokens 500 takes 100 + 500 = 600 tokens; 29,400 remain. The
// completion uses 250 tokens, so 250 are refunded when the response is written. The call has
// cost 350 tokens, which the bucket restores in 0.7 s.
package contract
