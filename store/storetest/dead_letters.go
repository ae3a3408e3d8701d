package storetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// DeadLetters stores the index of dead letters, and DLQ jobs.
type DeadLetters interface {
	// DeadLetters returns matching dead letters newest first. DeadLettersByOffset returns them by
	// partition and offset. Both lists start after the position `behind`.
	DeadLetters(ctx context.Context, filter deadletters.Filter, behind deadletters.DeadLetter, limit int) ([]deadletters.DeadLetter, error)
	DeadLettersByOffset(ctx context.Context, filter deadletters.Filter, behind deadletters.ID, limit int) ([]deadletters.DeadLetter, error)
	DeadLetterHours(ctx context.Context, filter deadletters.Filter) ([]deadletters.Group, error)
	DeadLettersOfJob(ctx context.Context, source, job string, limit int) ([]deadletters.DeadLetter, error)
	DeadLetterGroups(ctx context.Context, filter deadletters.Filter, limit int) ([]deadletters.Group, error)
	HandledPrefixes(ctx context.Context, topic string, young, missing time.Time) ([]deadletters.HandledPrefix, error)
	DeleteDeadLettersBefore(ctx context.Context, before deadletters.ID, limit int) (int, error)
	CreateJob(ctx context.Context, job deadletters.Job, entry store.AuditEntry) error
	Job(ctx context.Context, id string) (deadletters.Job, error)
	Jobs(ctx context.Context, limit int) ([]deadletters.Job, error)
	LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job deadletters.Job, ok bool, err error)
	NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error)
	SaveJobProgress(ctx context.Context, job deadletters.Job, handled []deadletters.ID, h deadletters.Disposition, entry *store.AuditEntry) (deadletters.JobState, error)
	SetJobState(ctx context.Context, id string, before, after deadletters.JobState, at time.Time, entry store.AuditEntry) error
}

var letterTopic = schemas.DeadLetterTopic("nexon")

// newDeadLetter returns a row of dead_letters with this offset. Its time is at(offset).
func newDeadLetter(e schemas.Entity, offset int64) deadletters.DeadLetter {
	return deadletters.DeadLetter{
		ID: deadletters.ID{Topic: schemas.DeadLetterTopic(e.Source), Partition: 3, Offset: offset}, Entity: e,
		Reason: schemas.Upstream4xx, Error: fmt.Sprint("error ", offset), Fingerprint: "f1", Status: 400, Attempts: 2, Replays: 1,
		At: at(offset), CorrelationID: fmt.Sprint("c", offset),
	}
}

func (b suite) deadLetter(all ...deadletters.DeadLetter) {
	b.Helper()
	for _, l := range all {
		if err := b.store.WriteFailure(b.Context(), store.Status{}, &l); err != nil {
			b.Fatal(err)
		}
	}
}

func (b suite) deadLetters(source string, open bool, limit int) []deadletters.DeadLetter {
	b.Helper()
	f := deadletters.Filter{Source: source}
	if open {
		f.Handled = deadletters.Open
	}
	all, err := b.store.DeadLetters(b.Context(), f, deadletters.DeadLetter{}, limit)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

func auditEntry(action string) store.AuditEntry {
	return store.AuditEntry{At: at(7), Actor: "me", Action: action, Source: "nexon", Before: []byte("null"), After: []byte("{}")}
}

// handle creates a job, and saves h as the outcome that the job had for these dead letters.
func (b suite) handle(h deadletters.Disposition, ids ...deadletters.ID) {
	b.Helper()
	j := job(time.Now().UnixNano())
	j.Lease.Holder = "handler"
	if err := b.store.CreateJob(b.Context(), j, auditEntry("x")); err != nil {
		b.Fatal(err)
	}
	j.State = deadletters.JobDone
	if _, err := b.store.SaveJobProgress(b.Context(), j, ids, h, nil); err != nil {
		b.Fatal(err)
	}
}

func testDeadLetterVisibility(b suite) {
	public, staff, partner := newDeadLetter(key("public"), 1), newDeadLetter(key("staff"), 2), newDeadLetter(key("partner"), 3)
	staff.Visibility, partner.Visibility = "staff", "partner"
	b.deadLetter(public, staff, partner)
	for _, c := range []struct {
		visibilities []string
		want         []deadletters.DeadLetter
	}{
		{nil, []deadletters.DeadLetter{partner, staff, public}},
		{[]string{}, []deadletters.DeadLetter{public}},
		{[]string{"staff"}, []deadletters.DeadLetter{staff, public}},
		{[]string{"staff", "partner", "other"}, []deadletters.DeadLetter{partner, staff, public}},
		{[]string{"' OR '1'='1"}, []deadletters.DeadLetter{public}},
	} {
		filter := deadletters.Filter{Source: entity.Source, Visibilities: c.visibilities}
		got, err := b.store.DeadLetters(b.Context(), filter, deadletters.DeadLetter{}, 9)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			b.Errorf("dead letters within %q: got %+v, %v, want %+v", c.visibilities, got, err, c.want)
		}
		groups, err := b.store.DeadLetterGroups(b.Context(), filter, 9)
		if err != nil || len(groups) != 1 || groups[0].Count != int64(len(c.want)) || groups[0].Totals.All != int64(len(c.want)) {
			b.Errorf("groups within %q: got %+v, %v, want one of %d", c.visibilities, groups, err, len(c.want))
		}
	}
}

func testDeadLetters(b suite) {
	is := func(open bool, limit int, want ...deadletters.DeadLetter) {
		b.Helper()
		if got := b.deadLetters("nexon", open, limit); len(got) != len(want) || (len(want) > 0 && !reflect.DeepEqual(got, want)) {
			b.Fatalf("dead letters: got\n%+v, want\n%+v", got, want)
		}
	}
	is(true, 9)
	undecoded := newDeadLetter(schemas.Entity{Source: "nexon"}, 2)
	undecoded.Reason, undecoded.Attempts, undecoded.CorrelationID = schemas.Undecodable, 0, ""
	one, three, other := newDeadLetter(entity, 1), newDeadLetter(entity, 3), newDeadLetter(schemas.Entity{Source: "nexo", Facet: "f", Key: "a"}, 4)
	s := failing(entity, 1)
	s.State = store.Failed
	if err := b.store.WriteFailure(b.Context(), s, &three); err != nil {
		b.Fatal(err)
	}
	b.hasStatus(s)
	b.deadLetter(one, undecoded, other)
	b.hasNoStatus(undecoded.Entity)
	repeated := three
	repeated.Attempts = 99
	b.deadLetter(repeated)
	is(true, 9, three, undecoded, one)
	is(true, 2, three, undecoded)

	unknown := newDeadLetter(entity, 77).ID
	b.handle(deadletters.Disposition{Outcome: deadletters.Purged, At: at(50)})
	b.handle(deadletters.Disposition{Outcome: deadletters.Replayed, By: "me", Job: "j", At: at(50)}, three.ID, unknown, one.ID, three.ID)
	b.handle(deadletters.Disposition{Outcome: deadletters.Purged, By: "you", At: at(51)}, one.ID, undecoded.ID)
	for _, l := range []*deadletters.DeadLetter{&one, &three} {
		l.Handled, l.HandledAt, l.HandledBy, l.Job = deadletters.Replayed, at(50), "me", "j"
	}
	undecoded.Handled, undecoded.HandledAt, undecoded.HandledBy = deadletters.Purged, at(51), "you"
	is(true, 9)
	is(false, 9, three, undecoded, one)
	anew := newDeadLetter(key("other"), 3) // the topic was recreated, so another record has the offset 3
	anew.At = at(60)
	b.deadLetter(anew)
	is(true, 9, anew)
	is(false, 9, anew, undecoded, one)
}

// selectedOffsets returns the offsets of matching dead letters, newest first. It checks that
// DeadLetters and DeadLettersByOffset return the same dead letters.
func (b suite) selectedOffsets(f deadletters.Filter) []int64 {
	b.Helper()
	f.Source = "nexon"
	found := map[int64]bool{}
	var newest []int64
	behind := deadletters.DeadLetter{}
	for {
		page, err := b.store.DeadLetters(b.Context(), f, behind, 2)
		if err != nil {
			b.Fatal(err)
		}
		for _, l := range page {
			newest = append(newest, l.Offset)
			found[l.Offset] = true
		}
		if len(page) < 2 {
			break
		}
		behind = page[1]
	}
	last := deadletters.ID{Partition: -1}
	walked := 0
	for {
		page, err := b.store.DeadLettersByOffset(b.Context(), f, last, 2)
		if err != nil {
			b.Fatal(err)
		}
		for _, l := range page {
			if !found[l.Offset] || l.Partition < last.Partition || l.Partition == last.Partition && l.Offset <= last.Offset {
				b.Errorf("%+v is listed after %+v", l.ID, last)
			}
			last = l.ID
			walked++
		}
		if len(page) < 2 {
			break
		}
	}
	if walked != len(newest) {
		b.Errorf("DeadLettersByOffset returned %d, DeadLetters %d", walked, len(newest))
	}
	return newest
}

func testDeadLetterFilter(b suite) {
	for n := range int64(6) {
		l := newDeadLetter(entity, n+1)
		l.Partition = int32(n % 2)
		if n == 4 {
			l.At = at(4) // l has the same time as the entry with offset 4, so the list orders these two entries by position
		}
		if n == 5 {
			l.Entity.Facet, l.Entity.Key, l.Reason, l.Fingerprint, l.Attempts = "guild", "x", schemas.ParseError, "f2", 5
		}
		b.deadLetter(l)
	}
	b.deadLetter(newDeadLetter(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: entity.Key}, 9))
	b.handle(deadletters.Disposition{Outcome: deadletters.Replayed, At: at(9)}, deadletters.ID{Topic: letterTopic, Partition: 0, Offset: 1})
	b.handle(deadletters.Disposition{Outcome: deadletters.Purged, At: at(9)}, deadletters.ID{Topic: letterTopic, Partition: 1, Offset: 2})
	five, one, two := 5, int32(1), int64(2)
	for name, test := range map[string]struct {
		filter deadletters.Filter
		want   []int64
	}{
		"all":         {deadletters.Filter{}, []int64{6, 4, 5, 3, 2, 1}},
		"open":        {deadletters.Filter{Handled: deadletters.Open}, []int64{6, 4, 5, 3}},
		"handled":     {deadletters.Filter{Handled: deadletters.Handled}, []int64{2, 1}},
		"purged":      {deadletters.Filter{Handled: deadletters.Purged}, []int64{2}},
		"reason":      {deadletters.Filter{Reason: schemas.ParseError}, []int64{6}},
		"fingerprint": {deadletters.Filter{Fingerprint: "f2"}, []int64{6}},
		"facet":       {deadletters.Filter{Facet: "guild"}, []int64{6}},
		"key":         {deadletters.Filter{Key: entity.Key}, []int64{4, 5, 3, 2, 1}},
		"times":       {deadletters.Filter{Since: at(2), Until: at(4)}, []int64{3, 2}},
		"attempts":    {deadletters.Filter{Attempts: &five}, []int64{6}},
		"one":         {deadletters.Filter{Partition: &one, Offset: &two}, []int64{2}},
		"several":     {deadletters.Filter{Key: entity.Key, Since: at(3), Handled: deadletters.Open}, []int64{4, 5, 3}},
	} {
		if got := b.selectedOffsets(test.filter); !reflect.DeepEqual(got, test.want) {
			b.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func testDeadLetterGroups(b suite) {
	for n := range int64(6) {
		l := newDeadLetter(entity, n+1)
		if l.Replays = 0; n == 1 {
			l.Replays = schemas.MaxReplays
		}
		if n == 4 {
			l.Fingerprint, l.Status = "f2", 0
		}
		if n == 5 {
			l.Entity, l.Reason, l.Fingerprint, l.Status = schemas.Entity{Source: entity.Source}, schemas.Undecodable, "", 0
		}
		b.deadLetter(l)
	}
	b.handle(deadletters.Disposition{Outcome: deadletters.Purged, At: at(9)}, newDeadLetter(entity, 1).ID)
	of := deadletters.Count{All: 5, AtReplayLimit: 1, Undecoded: 1}
	want := []deadletters.Group{
		{Reason: schemas.Upstream4xx, Fingerprint: "f1", Facet: entity.Facet, Status: 400, Error: "error 4", Count: 3, First: at(2), Last: at(4), AtReplayLimit: 1, Totals: of},
		{Reason: schemas.Undecodable, Error: "error 6", Count: 1, First: at(6), Last: at(6), Totals: of},
		{Reason: schemas.Upstream4xx, Fingerprint: "f2", Facet: entity.Facet, Error: "error 5", Count: 1, First: at(5), Last: at(5), Totals: of},
	}
	f := deadletters.Filter{Source: "nexon", Handled: deadletters.Open}
	if got, err := b.store.DeadLetterGroups(b.Context(), f, 9); err != nil || !reflect.DeepEqual(got, want) {
		b.Errorf("groups: got %+v, %v, want %+v", got, err, want)
	}
	if got, err := b.store.DeadLetterGroups(b.Context(), f, 1); err != nil || !reflect.DeepEqual(got, want[:1]) {
		b.Errorf("limited groups: got %+v, %v, want %+v", got, err, want[:1])
	}
}

func testHandledPrefixes(b suite) {
	var ids []deadletters.ID
	for n := range int64(12) {
		l := newDeadLetter(entity, n/2+1)
		l.Partition = int32(n % 2)
		ids = append(ids, l.ID)
		if n/2 != 4 || n%2 == 0 { // offset 5 of partition 1 gets no entry, all other offsets get an entry
			b.deadLetter(l)
		}
	}
	is := func(young, missing int64, before0, before1 int64) {
		b.Helper()
		want := []deadletters.HandledPrefix{{Partition: 0, First: 1, Last: 6, HandledBefore: before0, FirstIsRecent: missing <= 1}, {Partition: 1, First: 1, Last: 6, HandledBefore: before1, FirstIsRecent: missing <= 1}}
		if got, err := b.store.HandledPrefixes(b.Context(), letterTopic, at(young), at(missing)); err != nil || !slices.Equal(got, want) {
			b.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	is(99, 99, 1, 1)
	b.handle(deadletters.Disposition{Outcome: deadletters.Purged, At: at(9)}, ids[0], ids[2], ids[4], ids[1], ids[3], ids[5], ids[7], ids[11])
	is(99, 99, 4, 7)
	is(99, 7, 4, 7)
	is(99, 6, 4, 5) // the entry of offset 5 may still be written, so the prefix of partition 1 ends there
	is(99, 1, 4, 5)
	is(3, 99, 3, 3) // dead letters from the time at(3) or later are recent, and do not count as handled
	is(6, 99, 4, 6)
	forget := func(partition int32, before int64, limit, want int) {
		b.Helper()
		if n, err := b.store.DeleteDeadLettersBefore(b.Context(), deadletters.ID{Topic: letterTopic, Partition: partition, Offset: before}, limit); n != want || err != nil {
			b.Errorf("deleted entries: got %d, %v, want %d", n, err, want)
		}
	}
	forget(1, 7, 3, 3)
	forget(1, 7, 3, 2)
	forget(0, 4, 9, 3)
	if got := b.deadLetters("nexon", false, 9); len(got) != 3 || got[0].Offset != 6 || got[2].Offset != 4 {
		b.Errorf("dead letters left: got %+v", got)
	}
}

func testDeadLetterHours(b suite) {
	hour := time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)
	for n, after := range []time.Duration{0, time.Hour - time.Microsecond, time.Hour, 3*time.Hour + time.Minute} {
		l := newDeadLetter(entity, int64(n+1))
		if l.At = hour.Add(after); n == 1 {
			l.Reason = schemas.ParseError
		}
		b.deadLetter(l)
	}
	b.handle(deadletters.Disposition{Outcome: deadletters.Replayed, At: hour, Job: "job-1"}, newDeadLetter(entity, 2).ID)
	count := func(hours int, reason schemas.DeadLetterReason) deadletters.Group {
		return deadletters.Group{First: hour.Add(time.Duration(hours) * time.Hour), Reason: reason, Count: 1}
	}
	want := []deadletters.Group{count(0, schemas.ParseError), count(0, schemas.Upstream4xx), count(1, schemas.Upstream4xx), count(3, schemas.Upstream4xx)}
	got, err := b.store.DeadLetterHours(b.Context(), deadletters.Filter{Source: "nexon"})
	if err != nil || !reflect.DeepEqual(got, want) {
		b.Errorf("hours: got %+v, %v, want %+v", got, err, want)
	}
	got, err = b.store.DeadLetterHours(b.Context(), deadletters.Filter{Source: "nexon", Handled: deadletters.Open, Since: hour.Add(time.Hour)})
	if err != nil || !reflect.DeepEqual(got, want[2:]) {
		b.Errorf("hours of open ones since 13:00: got %+v, %v, want %+v", got, err, want[2:])
	}
	for job, want := range map[string]int{"job-1": 1, "job-2": 0, "": 0} {
		if of, err := b.store.DeadLettersOfJob(b.Context(), "nexon", job, 9); err != nil || len(of) != want || want == 1 && of[0].Job != job {
			b.Errorf("dead letters of %q: got %+v, %v, want %d", job, of, err, want)
		}
	}
}
