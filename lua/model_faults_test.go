package lua_test

import (
	"fmt"
	"testing"
)

// The model shows that the faults that it performs are harmless. This test checks that it performs
// each fault at each point of a request.
func TestModel_CoversEveryFaultAtEveryPoint(t *testing.T) {
	at := [...]string{"idle", "waiting", "sent", "written", "broken"}
	seen := map[string]bool{}
	m := model{most: 1, onStep: func(before *state, st step) {
		what := fmt.Sprint(st)
		switch f := before.air[st.i]; st.kind {
		case crash, rebalance:
			what += ", " + at[before.work[st.lane].at]
		case loseFormer:
			what += ", " + at[before.work[former].at]
		case loseProducer, failPublish:
			what += map[bool]string{true: ", landed", false: ", not landed"}[f.landed]
		case land:
			what += map[bool]string{true: ", rolled back", false: ""}[f.disowned]
		case outlive:
			what += ", " + [...]string{"pending", "confirmed"}[before.lock.state]
		case begin, write, breakFetch, settle:
			if st.i == former && before.work[lowLane].at >= sent {
				what += ", beside the next one"
			}
		default:
		}
		seen[what] = true
	}}
	searched(t, m)

	want := []string{
		"the producer dies, or the record with it, not landed", "the producer dies, or the record with it, landed",
		"the publish fails, not landed", "the publish fails, landed",
		"the publish fails, and the record is still in flight", "a record arrives in its topic, rolled back",
		"its acknowledgement arrives, its confirm does not",
		"the lock's life ends, pending", "the lock's life ends, confirmed", "the hash expires or is lost",
		"a retry is due",
	}
	for _, lane := range []laneID{lowLane, highLane} {
		want = append(want, fmt.Sprint(step{kind: crash, lane: lane}, ", idle")) // a worker without work crashes: its last record is finished, but not committed
		for _, phase := range at[1:] {
			for _, k := range []kind{crash, rebalance} {
				want = append(want, fmt.Sprint(step{kind: k, lane: lane}, ", ", phase))
			}
		}
	}
	for _, phase := range at[1:] {
		want = append(want, fmt.Sprint(step{kind: loseFormer}, ", ", phase))
	}
	for _, k := range []kind{begin, write, breakFetch, settle} {
		want = append(want, fmt.Sprint(step{kind: k, i: former}, ", beside the next one"))
	}
	for _, what := range want {
		if !seen[what] {
			t.Errorf("%s: did not happen", what)
		}
	}
}
