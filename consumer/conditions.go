package consumer

import (
	"fmt"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/source"
)

// These conditions concern a whole source. A condition is a failure that lasts for a while. The
// worker logs when each condition begins and when it ends.
var (
	conditionPause = observe.Condition{
		Event: "upstream_paused", Failing: "upstream requests a pause; no calls until the backoff ends", Recovered: "upstream pause ended; calls resumed",
	}
	conditionOutage = observe.Condition{
		Event: "upstream_failing", Failing: "upstream fails for all entities; circuit breaker open", Recovered: "upstream recovered; circuit breaker closed",
	}
	conditionRefused = observe.Condition{
		Event: "upstream_refuses_source", Failing: "upstream refuses the credential of the source; circuit breaker of the source open", Recovered: "upstream accepts the credential of the source; circuit breaker of the source closed",
	}
	conditionReleases = observe.Condition{
		Event: "client_release_failed", Failing: "outstanding requests of clients not released after their end; retrying until their leases expire",
		Recovered: "releasing outstanding requests of clients works again",
	}
	conditionSteps = observe.Condition{
		Event: "run_steps_unannounced", Failing: "steps of runs can't be made due; retrying until their leases end", Recovered: "making steps of runs due works again",
	}
	conditionUnreachable = observe.Condition{Event: "upstream_unreachable", Failing: "upstream unreachable", Recovered: "upstream reachable"}
	conditionRetention   = observe.Condition{
		Event: "retention_half_passed", Failing: "oldest uncommitted record is older than half of its topic's retention; kafka may delete the record before a worker reads it",
		Recovered: "oldest uncommitted record is younger than half of its topic's retention",
	}
)

// conditionEndpoint returns the condition of a facet whose own circuit breaker is open.
func conditionEndpoint(facet string) observe.Condition {
	return observe.Condition{
		Event: "endpoint_failing", Failing: "endpoint fails for all entities; circuit breaker open", Recovered: "endpoint recovered; circuit breaker closed",
		Attr: "facet", Value: facet,
	}
}

// condition returns the log condition for the scope that is paused if the upstream refuses this call.
// `block` is the kind of scope, one of the source.Block constants.
func (c *call) condition(block string) observe.Condition {
	switch block {
	case source.BlockCredential:
		return observe.Condition{
			Event: "upstream_refuses_credential", Failing: "upstream refuses a credential; calls with this credential are paused", Recovered: "upstream accepts a credential again; calls with this credential resumed",
			Attr: "credential", Value: c.Credential(),
		}
	case source.BlockResource:
		return observe.Condition{
			Event: "upstream_refuses_resource", Failing: "upstream refuses calls of a resource; calls of this resource are paused", Recovered: "upstream accepts calls of a resource again; calls of this resource resumed",
			Attr: "document", Value: c.target.Facet + "/" + c.target.Document,
		}
	}
	return observe.Condition{
		Event: "upstream_refuses_endpoint", Failing: "upstream refuses calls of an endpoint; calls of this endpoint are paused", Recovered: "upstream accepts calls of an endpoint again; calls of this endpoint resumed",
		Attr: "document", Value: c.target.Facet + "/" + c.target.Document,
	}
}

// logConditions logs the beginning and the end of failures that concern more than one entity, such as
// a backoff, an outage or a refused credential.
func (w *Worker) logConditions(a *attempt, f fetched, d decision, diag diagnosis) {
	o := f.outcome
	switch {
	case d.action == actionOpenScope && o.Class == source.AuthRefused:
		w.conditions.Error(w.log, o.Permit.(*call).condition(d.block), o.Err)
	case d.action == actionOpenScope:
		w.conditions.Warn(w.log, o.Permit.(*call).condition(d.block), pauseError(o))
	case o.Class == source.AuthRefused && d.action == actionOpenSource:
		w.conditions.Error(w.log, conditionRefused, o.Err)
	case d.action == actionBackOff || o.Class == source.Maintenance:
		w.conditions.Warn(w.log, conditionPause, pauseError(o))
	case diag == sourceOpened:
		w.conditions.Error(w.log, conditionOutage, o.Err)
	case diag == endpointOpen:
		w.conditions.Error(w.log, conditionEndpoint(a.t.request.Facet), o.Err)
	case o.Class == source.Transient && f.calls == 0:
		w.conditions.Warn(w.log, conditionUnreachable, o.Err)
	case d.next == stepStore && w.conditions.Active():
		resolved := []observe.Condition{conditionPause, conditionOutage, conditionRefused, conditionUnreachable, conditionEndpoint(a.t.request.Facet)}
		for _, c := range a.calls {
			resolved = append(resolved, c.condition(source.BlockEndpoint), c.condition(source.BlockResource), c.condition(source.BlockCredential))
		}
		for _, cond := range resolved {
			w.conditions.Resolved(w.log, cond)
		}
	}
}

// pauseError adds the response's class and the pause that the upstream requests to the response's
// error.
func pauseError(o source.Outcome) error {
	return fmt.Errorf("%w (class %s, requested pause %v)", o.Err, o.Class, max(o.RetryAfter, o.Wait))
}
