package lua_test

import (
	cli "flag" // renamed, because this package has a helper named flag
	"testing"
	"time"
)

// modelDepth is the maximum number of outstanding requests in a search. A depth of 2 has been enough
// to find a violation for every broken rule. A search with depth 3 visits about a hundred times as
// many states and takes an hour.
var modelDepth = cli.Int("model.depth", 2, "how many requests the model of an entity has outstanding at most")

// Each write that a failover can lose multiplies the number of states by about ten. With one
// outstanding request (-model.failover 1), a HIGH record and a LOW record never exist at the same
// time. docs/departures.md has the figures for two requests, with failures and failovers together.
var (
	failoverDepth = cli.Int("model.failover", 1, "how many requests the model of an entity has outstanding at most where Redis fails over")
	forgotten     = cli.Uint("model.forgets", 2, "how many writes a failover of Redis forgets at most in the model of an entity")
)

// all is a limit for search that is greater than the number of states, so that it visits all
// states.
const all = 1 << 30

func searched(t *testing.T, m model) *loss {
	t.Helper()
	began := time.Now()
	found, states, deepest := m.search(all)
	t.Logf("%d outstanding: %d states, %d steps deep, in %v", m.most, states, deepest, time.Since(began).Round(time.Millisecond))
	return found
}

func TestModel_NoOrderLosesOrAges(t *testing.T) {
	if found := searched(t, model{rules: rules{noRows: true}, most: *modelDepth}); found != nil {
		t.Error(found)
	}
}

// With failed fetches there are more states, because scheduled retries are requests too. This search
// therefore allows one outstanding request less than TestModel_NoOrderLosesOrAges.
func TestModel_NoOrderWithFailuresLoses(t *testing.T) {
	if found := searched(t, model{most: max(1, *modelDepth-1)}); found != nil {
		t.Error(found)
	}
}

func TestModel_NoFailoverLosesOrAges(t *testing.T) {
	if found := searched(t, model{rules: rules{noRows: true}, most: *failoverDepth, forgets: uint8(*forgotten)}); found != nil {
		t.Error(found)
	}
}

// With two outstanding requests, a LOW record and a HIGH record can exist at the same time. To keep
// the search short, workers do not crash here. TestModel_NoFailoverLosesOrAges covers worker crashes,
// with one outstanding request.
func TestModel_NoFailoverWithBothLanesLoses(t *testing.T) {
	if found := searched(t, model{rules: rules{noRows: true}, most: 2, forgets: uint8(*failoverDepth), calm: true}); found != nil {
		t.Error(found)
	}
}

// With worker crashes this search has millions of states. So workers crash only if the test runs
// with -model.failover 2.
func TestModel_NoFailoverWithFailuresLoses(t *testing.T) {
	deep := *failoverDepth > 1
	if found := searched(t, model{most: max(1, *failoverDepth-1), forgets: uint8(*forgotten), calm: !deep}); found != nil {
		t.Error(found)
	}
}

const (
	lost     = "an accepted request is lost"
	olderWon = "an older answer replaced a newer one"
)

// brokenRule checks that with the broken rules r an invariant is violated, and that the shortest
// sequence to a violation has `steps` steps.
func brokenRule(t *testing.T, r rules, want string, steps int) {
	t.Helper()
	m := model{rules: r, most: 2}
	if !r.noRows {
		m.most = 1
	}
	brokenModel(t, m, want, steps)
}

// brokenByFailover does the same as brokenRule, in a model with failovers: it checks that an
// invariant is violated, and the length of the shortest sequence.
func brokenByFailover(t *testing.T, r rules, want string, steps int) {
	t.Helper()
	r.noRows = true
	brokenModel(t, model{rules: r, most: 1, forgets: 2, keeps: true}, want, steps)
}

func brokenModel(t *testing.T, m model, want string, steps int) {
	t.Helper()
	switch found := searched(t, m); {
	case found == nil:
		t.Error("got no loss: the rule is not needed, or the model misses its reason")
	case found.what != want || len(found.steps) != steps:
		t.Errorf("want %d steps to: %s; found %v", steps, want, found)
	default:
		t.Log(found)
		m.rules = rules{noRows: m.noRows}
		follow(t, m, found.steps)
	}
}

// follow runs the steps that lead to a violation under a broken rule, but with our rules, in the
// model and on the scripts. Steps that are then impossible are left out. In these sequences the
// scripts are most likely to differ from the model.
func follow(t *testing.T, m model, path []step) {
	t.Helper()
	eachRedis(t, func(e entity) {
		w := walk{e: e, m: m, real: map[number]int64{}}
		for _, st := range path {
			w.take(st)
		}
	})
}

func TestADRModel_LosesAnAcceptedRequest(t *testing.T) { brokenRule(t, adr, lost, 3) }

func TestADRModel_LosesEvenIfPendingIsNoPromise(t *testing.T) {
	r := adr
	r.noPending = false
	brokenRule(t, r, lost, 7)
}

func TestBrokenRule_NoPendingLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, noPending: true}, lost, 3)
}

func TestBrokenRule_OnlyUpgradesPendingLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, upgradesOnlyPending: true}, lost, 8)
}

func TestBrokenRule_RollbackRestoresLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, restores: true}, lost, 11)
}

func TestBrokenRule_SatisfiedDoesNotSettleLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, skipsUnsettled: true}, lost, 10)
}

func TestBrokenRule_NumberBeforeTheWaitAges(t *testing.T) {
	brokenRule(t, rules{noRows: true, numberAtWait: true}, olderWon, 9)
}

func TestBrokenRule_UnguardedWriteAges(t *testing.T) {
	brokenRule(t, rules{noRows: true, noGuard: true}, olderWon, 9)
}

func TestBrokenRule_NoStrictReasonsLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, noStrict: true}, lost, 9)
}

func TestBrokenRule_CountedNumbersAge(t *testing.T) {
	brokenRule(t, rules{noRows: true, counts: true}, olderWon, 10)
}

func TestBrokenRule_SkipBelowNewestIssuedLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, skipsOlder: true}, lost, 7)
}

func TestBrokenRule_SnapshotHasEventNumberLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, eventNumber: true}, lost, 9)
}

func TestBrokenRule_SettleBeforeWriteLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, settlesFirst: true}, lost, 8)
}

func TestBrokenRule_CommitBeforeWriteLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, commitsFirst: true}, lost, 6)
}

func TestBrokenRule_RowDeletedAtRetryLoses(t *testing.T) {
	brokenRule(t, rules{rowGoesWhenQueued: true}, lost, 16)
}

func TestBrokenRule_FailureKeepsLockLoses(t *testing.T) {
	brokenRule(t, rules{rowGoesWhenQueued: true, rowKeepsLock: true}, lost, 16)
}

func TestBrokenRule_AnySnapshotDeletesRowLoses(t *testing.T) {
	brokenRule(t, rules{rowGoesUnguarded: true}, lost, 21)
}

func TestBrokenRule_RowRefusesLaterRequestLoses(t *testing.T) {
	brokenRule(t, rules{refusesHeld: true}, lost, 19)
}

func TestBrokenRule_LockConfirmedAtOnceLoses(t *testing.T) {
	brokenRule(t, rules{noRows: true, confirmsAny: true}, lost, 7)
}

func TestBrokenRule_NumbersBelowClockAge(t *testing.T) {
	brokenByFailover(t, rules{noClock: true}, olderWon, 10)
}

func TestBrokenRule_LaterRecordSupersededLoses(t *testing.T) {
	if found := searched(t, model{rules: rules{noRows: true, supersedesLater: true}, most: 1}); found != nil {
		t.Error("the loss needs no failover: ", found)
	}
	brokenByFailover(t, rules{supersedesLater: true}, lost, 14)
}

// After a failover, the lock of a request that was already settled reappears. A new request that this
// lock covers gets no fetch.
func TestBrokenRule_ForeignLockCoversLoses(t *testing.T) {
	brokenByFailover(t, rules{noServer: true}, lost, 10)
}

// Here every caller has read the snapshot, and a lock covers only requests of callers whose
// snapshot is older than the lock's number. A failover can still lose the begin of the lock's fetch
// and keep the lock. This lock then covers a strict request, which therefore gets no fetch that
// begins after it.
func TestBrokenRule_ForeignLockCoversStrictLoses(t *testing.T) {
	brokenModel(t, model{rules: rules{noRows: true, noServer: true}, most: 1, forgets: 2, keeps: true, reads: true}, lost, 10)
}
