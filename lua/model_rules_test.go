package lua_test

import "fmt"

// rules can be broken one by one to show why they exist. The zero value is our rules.
type rules struct {
	noRows bool // no fetch fails: the model without scheduled retries

	restores            bool // a rollback restores the lock that an upgrade replaced
	noPending           bool // a pending lock covers like a confirmed one
	upgradesOnlyPending bool // a pending lock that replaced none supersedes
	skipsUnsettled      bool // SATISFIED skips without settling
	numberAtWait        bool // the fetch's number is issued before the wait for a permit
	noGuard             bool // a write is not guarded by the number
	noStrict            bool // every request accepts a fetch in flight
	counts              bool // numbers by INCR
	confirmsAny         bool // an acknowledgement confirms any lock
	supersedesLater     bool // a HIGH lock also supersedes LOW records with higher numbers
	noClock             bool // numbers can be below Redis' time
	skipsOlder          bool // every record older than the newest number is skipped
	eventNumber         bool // the snapshot's version is the event's
	settlesFirst        bool // settled before the write
	commitsFirst        bool // committed before the write

	refusesHeld       bool // a later relaxed request is refused while a row exists
	rowGoesWhenQueued bool // a row is deleted when Kafka has acknowledged its retry
	rowKeepsLock      bool // a failure keeps the lock
	rowGoesUnguarded  bool // any stored snapshot deletes the row

	noServer bool // a lock covers, whichever server set it
}

// exact reports whether the values of numbers matter, not only their order.
func (r rules) exact() bool { return r.counts || r.noClock }

// adr is the rules of adr-013 §1, §2 and §5.
var adr = rules{
	noRows: true, counts: true, noPending: true, skipsOlder: true, eventNumber: true, noGuard: true, noStrict: true,
}

type kind uint8

const (
	ask kind = iota
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

// step is one event.
type step struct {
	kind   kind
	lane   laneID
	strict bool
	floor  bool // the caller has read the snapshot
	i      int  // index of the flight or worker
	// The replica receives neither this write nor later ones.
	unheard bool
}

func (st step) String() string {
	if st.unheard {
		st.unheard = false
		return st.String() + ", and the replica does not hear of it"
	}
	who := [...]string{"the former owner", "LOW's worker", "HIGH's worker"}
	switch st.kind {
	case ask:
		reason := "relaxed"
		if st.strict {
			reason = "strict"
		}
		if st.floor {
			reason += ", having read"
		}
		return fmt.Sprintf("ask %v, %s", st.lane, reason)
	case land:
		return "a record arrives in its topic"
	case ack:
		return "its acknowledgement arrives"
	case failPublish:
		return "the publish fails"
	case ackUnconfirmed:
		return "its acknowledgement arrives, its confirm does not"
	case failEarly:
		return "the publish fails, and the record is still on its way"
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

// reply is a script's reply, and a permanent loss.
type reply struct {
	verdict string
	n       number
	wrong   string
}

// every contains the steps that can be possible in any state without a failover.
var every = func() (all []step) {
	for _, l := range []laneID{lowLane, highLane} {
		for i := range 4 {
			all = append(all, step{kind: ask, lane: l, strict: i&1 != 0, floor: i&2 != 0})
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
