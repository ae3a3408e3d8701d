// Package announced reads what an upstream's answers say of its quotas: how much is
// left, when it comes back, for how long to stay away, in every spelling that is in
// use. Its functions are pure, and take anything for input.
package announced

import "time"

// Unknown stands in a Notice for a number that the answer does not tell.
const Unknown = -1

// Notice is what one answer tells of one policy.
type Notice struct {
	Policy   string // by its name in the quota
	Resource string // which of the policy's budgets the answer names; empty: it names none
	// Limit and Remaining are of the window, in the policy's unit, and Cost is what the call
	// itself was charged; Unknown where the answer does not tell.
	Limit, Remaining, Cost int64
	// Reset is how long from now the window ends, and Slack by how much later that
	// may be, for the answer rounds it; Reset is negative where the answer does not tell.
	Reset, Slack time.Duration
}
