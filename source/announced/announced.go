package announced

import "time"

// Unknown is the value of a Notice field that the response does not report.
const Unknown = -1

// Notice is the state of one quota policy as reported by one response.
type Notice struct {
	Policy   string // name of the quota policy
	Resource string // name of the budget within the policy, for example "core" of GitHub; empty if not reported
	// Limit and Remaining describe the current window in the policy's unit. Cost is the cost of the
	// call that was answered. A number that is not reported is Unknown.
	Limit, Remaining, Cost int64
	// Reset is the time until the window ends, negative if not reported. The real end may be up
	// to Slack later, because the reported time is rounded.
	Reset, Slack time.Duration
}
