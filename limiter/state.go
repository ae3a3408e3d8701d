package limiter

// State is the state of a source's limiter. The values are part of the admin API and of the metric
// rate_limiter_state.
type State string

// The states of a source. A state is chosen in this order: unused, stopped, breaker-open,
// backing-off, restoring-count, quiet-period, ramping, flowing.
const (
	StateUnused         State = "unused"          // no call was made yet
	StateStopped        State = "stopped"         // an operator has stopped the source (emergency stop)
	StateBreakerOpen    State = "breaker-open"    // the circuit breaker is open: only single probes are sent
	StateBackingOff     State = "backing-off"     // the upstream refused calls, and the pause after that has not ended
	StateRestoringCount State = "restoring-count" // no permit is granted until the day's count is restored
	StateQuietPeriod    State = "quiet-period"    // no permit is granted for some time after the state in Redis was lost
	StateRamping        State = "ramping"         // the rate rises after a backoff or an open breaker
	StateFlowing        State = "flowing"
)

// These states are shown after a change of the settings until Redis has received the change. ReadView
// does not return them: its caller, which has read the settings, sets them.
const (
	StateStopping State = "stopping" // an emergency stop is stored, but not in force
	StateResuming State = "resuming" // the emergency stop is removed, but still in force
)

// viewStates lists the states in which ReadView can find a limiter.
var viewStates = []State{
	StateUnused, StateStopped, StateBreakerOpen, StateBackingOff, StateRestoringCount, StateQuietPeriod, StateRamping, StateFlowing,
}

// AllowsCalls reports whether the limiter grants permits in this state.
func (s State) AllowsCalls() bool {
	return s == StateFlowing || s == StateRamping || s == StateUnused
}

// WaitReason is the reason why the oldest waiter of a lane waits: the name of a policy, or one of
// the constants below. The values are part of the admin API.
type WaitReason string

// The reasons that are not names of policies.
const (
	reasonBackoff         WaitReason = "backoff"
	ReasonStopped         WaitReason = "stopped"
	reasonStateLost       WaitReason = "state lost"
	reasonDayCount        WaitReason = "day not counted yet"
	reasonBreakerOpen     WaitReason = "breaker open"
	reasonUnknownPolicy   WaitReason = "policy of another release"
	reasonRedis           WaitReason = "Redis does not answer"
	reasonSettingsUnread  WaitReason = "the settings can't be read"
	reasonDayCountUnsaved WaitReason = "the day's count can't be written down"
)

// waitReason returns the reason of a rejection.
func (q Quota) waitReason(w refusal) WaitReason {
	switch w {
	case notRefused:
		return ""
	case refusedByBackoff:
		return reasonBackoff
	case refusedByStop:
		return ReasonStopped
	case refusedByStateLoss:
		return reasonStateLost
	case refusedByDayCount:
		return reasonDayCount
	case refusedByBreaker:
		return reasonBreakerOpen
	}
	if named := q.named(); int(w) <= len(named) {
		return WaitReason(named[w-1].name)
	}
	return reasonUnknownPolicy
}
