package virtual

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/sqlite"
)

// check is an invariant that the oracle checks after each hour. A new feature needs checks of its own.
type check struct {
	name string
	// judge returns one text for each violation. It may keep state between its calls.
	judge func(s *state) []string
}

// checks returns the checks of all capabilities.
func checks() []check {
	lost, contract, ledgers := newLostCheck(), &contractCheck{}, &ledgerCheck{committed: map[partition]int64{}}
	return []check{
		{"lost requests", lost.judge},
		{"older over newer", judgeOrder},
		{"contract", contract.judge},
		{"locks", judgeLocks},
		{"ledgers", ledgers.judge},
		{"cursors", judgeCursors},
	}
}

// finding is a violation of an invariant.
type finding struct{ check, text string }

func (f finding) String() string { return f.check + ": " + f.text }

// oracle judges the world by the records in Kafka, the database, the locks in Redis and the calls at
// the upstream. It does not use freshet's own output.
type oracle struct {
	w      *world
	db     *sql.DB
	kafka  *kafkaReader
	checks []check
	calls  int // number of calls in the hours that the oracle has checked
	used   int // number of calls on the first day before the run began

	mu       sync.Mutex
	findings []finding
	// refreshes are the refreshes that a query service accepted and that have not ended yet.
	refreshes []refresh
}

// refresh is an accepted refresh of an entity.
type refresh struct {
	key string
	at  time.Time
}

// regressions records each write that replaces a snapshot by an older one.
const regressions = `
CREATE TABLE regressions (key TEXT, old INTEGER, new INTEGER, old_checked INTEGER, new_checked INTEGER);
CREATE TRIGGER regression BEFORE UPDATE ON snapshot_state
WHEN NEW.version < OLD.version OR NEW.last_checked_at < OLD.last_checked_at - 10000000 BEGIN
	INSERT INTO regressions VALUES (OLD.key, OLD.version, NEW.version, OLD.last_checked_at, NEW.last_checked_at);
END`

// startOracle creates the database and the oracle's table in it.
func (w *world) startOracle() error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, w.databaseFile())
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		return err
	}
	w.oracle = &oracle{w: w, kafka: newKafkaReader(w.net.dialer(oracleName)), checks: checks()}
	if w.oracle.db, err = sql.Open("sqlite", "file:"+w.databaseFile()+"?_pragma=busy_timeout(5000)"); err != nil {
		return err
	}
	w.oracle.db.SetMaxOpenConns(1)
	_, err = w.oracle.db.ExecContext(ctx, regressions)
	return err
}

// useDay stores that the day until midnight has used almost all its calls, as if the source had run
// before. So each run shows what happens at a midnight after the budget of the day was used up.
func (o *oracle) useDay(midnight time.Time, calls int) error {
	o.used = calls
	_, err := o.db.ExecContext(context.Background(), "INSERT INTO quota_usage VALUES (?, 'day', ?, ?, ?)",
		sourceName, midnight.UnixMicro(), calls, time.Now().UnixMicro())
	return err
}

func (o *oracle) close() { _ = o.db.Close() }

// find adds a finding. It may be called concurrently.
func (o *oracle) find(check, format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.findings = append(o.findings, finding{check, fmt.Sprintf(format, args...)})
}

// accepted adds a refresh that a query service has accepted.
func (o *oracle) accepted(key string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refreshes = append(o.refreshes, refresh{key, at})
}

// processEnded adds a finding if a process ends by itself while its services work.
func (o *oracle) processEnded(name string, err error) {
	if o.w.calm(time.Minute) {
		o.find("processes", "%s ended by itself: %v", name, err)
	}
}

// state is the state of the services and processes at the end of an hour. The checks examine it.
type state struct {
	w   *world
	now time.Time
	// calm is set if no fault was active in the last hour, so that the effects of faults must be over.
	calm bool
	// committed is read before all other fields, and locks is read after all other fields.
	committed   map[partition]int64
	ends        map[partition]int64
	records     []*record // records that were published since the last hour
	calls       []call    // calls that arrived since the last hour
	usedBefore  int       // calls of the first day before the run
	callsToday  int       // number of calls on the calendar day of `now`, in the time zone of the quota
	deadLetters map[recordID]bool
	snapshots   map[string]snapshot
	statuses    map[string]status
	locks       []lock
	regressions []string
	overdue     overdue
	refreshes   []refresh // accepted refreshes that have not ended yet
}

// judge judges the last hour. It returns the findings so far and a line for the timeline.
func (o *oracle) judge() ([]finding, string, error) {
	s, err := o.read(context.Background())
	if err != nil {
		return nil, "", fmt.Errorf("read the state of the world: %w", err)
	}
	for _, c := range o.checks {
		for _, text := range c.judge(s) {
			o.find(c.name, "%s", text)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := o.refreshes[:0]
	for _, r := range o.refreshes {
		if !s.refreshed(r) {
			kept = append(kept, r)
		}
	}
	o.refreshes = kept
	waiting := int64(0)
	for p, end := range s.ends {
		if p.topic != schemas.DeadLetterTopic(sourceName) {
			waiting += end - s.committed[p]
		}
	}
	line := fmt.Sprintf("%d calls, %d today; %d records, %d wait; %d snapshots, %d failures, %d dead letters; %s",
		len(s.calls), s.callsToday, len(s.records), waiting, len(s.snapshots), len(s.statuses), len(s.deadLetters), o.w.readers)
	return o.findings, line, nil
}

// read reads the state of the services. The order of the reads matters: the comments of the fields of
// state explain it.
func (o *oracle) read(ctx context.Context) (*state, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	s := &state{w: o.w, now: time.Now(), calm: o.w.calm(time.Hour)}
	o.mu.Lock()
	s.refreshes = append(s.refreshes, o.refreshes...)
	o.mu.Unlock()
	if err := o.kafka.read(ctx, s); err != nil {
		return nil, err
	}
	if err := errors.Join(o.readSnapshots(ctx, s), o.readStatuses(ctx, s), o.readOverdue(ctx, s)); err != nil {
		return nil, err
	}
	s.locks = o.w.locks()
	s.calls = o.w.upstream.since(o.calls)
	o.calls += len(s.calls)
	s.usedBefore = o.used
	if day(s.now) == day(o.w.start) {
		s.callsToday = o.used
	}
	for _, c := range o.w.upstream.since(0) {
		if day(c.at) == day(s.now) {
			s.callsToday++
		}
	}
	return s, nil
}

// calm reports whether no fault was active for the duration d before now.
func (w *world) calm(d time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.active) == 0 && time.Since(w.lastFault) > d
}

// day returns the calendar day of a time in the zone of the quota.
func day(t time.Time) string { return t.In(seoul).Format(time.DateOnly) }

var seoul = func() *time.Location {
	zone, err := time.LoadLocation(quotaZone)
	if err != nil {
		panic(err)
	}
	return zone
}()
