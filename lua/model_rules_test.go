package lua_test

import "fmt"

// rules selects which rules of the scripts and workers the model breaks, to show why each rule
// exists. The zero value breaks none. A row is the database row of a scheduled retry.
type rules struct {
	noRows bool // if set, no fetch fails, so there are no scheduled retries

	restores            bool // if set, a rollback restores the lock that an upgrade replaced
	noPending           bool // if set, a pending lock covers like a confirmed one
	upgradesOnlyPending bool // if set, a pending lock supersedes LOW records, unless the lock was set by an upgrade
	skipsUnsettled      bool // if set, a record that is skipped as SATISFIED is not settled
	numberAtWait        bool // if set, the fetch's number is issued before the wait for a permit
	noGuard             bool // if set, a new snapshot replaces a stored snapshot with a higher number
	noStrict            bool // if set, every request accepts a fetch in flight
	counts              bool // if set, numbers are counted with INCR
	confirmsAny         bool // if set, an acknowledgement confirms any lock
	supersedesLater     bool // if set, a HIGH lock also supersedes LOW records with higher numbers
	noClock             bool // if set, issued numbers can be below Redis' clock
	skipsOlder          bool // if set, every record older than the newest number is skipped
	eventNumber         bool // if set, the snapshot gets the number of the event, not of the fetch
	settlesFirst        bool // if set, a fetch is settled before its snapshot is written
	commitsFirst        bool // if set, a record is committed before its snapshot is written

	refusesHeld       bool // if set, while a scheduled retry exists, a later relaxed request is skipped
	rowGoesWhenQueued bool // if set, a retry's row is deleted when Kafka acknowledges the retry, not when a fetch succeeds
	rowKeepsLock      bool // if set, a failed fetch keeps the lock
	rowGoesUnguarded  bool // if set, any stored snapshot deletes the retry's row, even if the snapshot is older

	noServer bool // if set, a lock covers even if another server set it
}

// exact reports whether the model must keep the values of numbers. It returns false if only the
// order of the numbers matters.
func (r rules) exact() bool { return r.counts || r.noClock }

// adr contains the rules of adr-013 §1, §2 and §5.
var adr = rules{
	noRows: true, counts: true, noPending: true, skipsOlder: true, eventNumber: true, noGuard: true, noStrict: true,
}

type kind uint8

const (
	enqueue kind = iota
	land
	ack
	failPublish
	loseProducer
	outlive
	loseHash
	peek
	begin
	write
	breakFetch
	settle
	commit
	crash
	rebalance
	loseFormer
	due
	ackUnconfirmed
	failEarly
	failover
)

// step is one event in the model.
type step struct {
	kind   kind
	lane   laneID
	strict bool
	floor  bool // true: the caller has read the stored snapshot
	i      int  // index of the publish (flight) or of the worker
	// The replica of Redis receives neither the write of this step nor later writes.
	unheard bool
}

func (st step) String() string {
	if st.unheard {
		st.unheard = false
		return st.String() + ", and the replica misses it"
	}
	who := [...]string{"the former owner", "LOW's worker", "HIGH's worker"}
	switch st.kind {
	case enqueue:
		reason := "relaxed"
		if st.strict {
			reason = "strict"
		}
		if st.floor {
			reason += ", having read"
		}
		return fmt.Sprintf("enqueue %v, %s", st.lane, reason)
	case land:
		return "a record arrives in its topic"
	case ack:
		return "its acknowledgement arrives"
	case failPublish:
		return "the publish fails"
	case ackUnconfirmed:
		return "its acknowledgement arrives, its confirm does not"
	case failEarly:
		return "the publish fails, and the record is still in flight"
	case failover:
		return "the replica takes over"
	case loseProducer:
		return "the producer dies, or the record with it"
	case outlive:
		return "the lock's life ends"
	case loseHash:
		return "the hash expires or is lost"
	case peek:
		return who[st.i] + " peeks"
	case begin:
		return who[st.i] + " begins and sends"
	case write:
		return who[st.i] + " writes"
	case breakFetch:
		return who[st.i] + "'s fetch fails, which is written down"
	case settle:
		return who[st.i] + " settles"
	case commit:
		return fmt.Sprintf("%v's offset is committed", st.lane)
	case crash:
		return fmt.Sprintf("%v's worker dies", st.lane)
	case rebalance:
		return fmt.Sprintf("%v's partition gets another owner", st.lane)
	case loseFormer:
		return "the former owner dies"
	case due:
		return "a retry is due"
	}
	return "?"
}

// reply is the reply of the script that a step runs. If the step violates an invariant, the field
// `wrong` describes the violation.
type reply struct {
	verdict string
	n       number
	wrong   string
}

// every contains all steps that are possible in some state of a model without failovers.
var every = func() (all []step) {
	for _, l := range []laneID{lowLane, highLane} {
		for i := range 4 {
			all = append(all, step{kind: enqueue, lane: l, strict: i&1 != 0, floor: i&2 != 0})
		}
		for _, k := range []kind{commit, crash, rebalance} {
			all = append(all, step{kind: k, lane: l})
		}
	}
	for i := range mostOutstanding {
		for _, k := range []kind{land, ack, ackUnconfirmed, failPublish, failEarly, loseProducer} {
			all = append(all, step{kind: k, i: i})
		}
	}
	for i := range 3 {
		for _, k := range []kind{peek, begin, write, breakFetch, settle} {
			all = append(all, step{kind: k, i: i})
		}
	}
	for _, k := range []kind{outlive, loseHash, loseFormer, due} {
		all = append(all, step{kind: k})
	}
	return all
}()
