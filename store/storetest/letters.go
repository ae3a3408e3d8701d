package storetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Letters is what is asked of a store about dead letters.
type Letters interface {
	// Letters returns the chosen ones, the newest first, behind one of them unless its time
	// is zero; WalkLetters in the order in which they lie on their topic.
	Letters(ctx context.Context, filter store.LetterFilter, behind store.Letter, limit int) ([]store.Letter, error)
	WalkLetters(ctx context.Context, filter store.LetterFilter, behind store.LetterID, limit int) ([]store.Letter, error)
	GroupLetters(ctx context.Context, filter store.LetterFilter, limit int) ([]store.LetterGroup, error)
	LetterPrefixes(ctx context.Context, topic string, young, missing time.Time) ([]store.LetterPrefix, error)
	ForgetLetters(ctx context.Context, before store.LetterID, limit int) (int, error)
	CreateJob(ctx context.Context, job store.LetterJob, entry store.AuditEntry) error
	Job(ctx context.Context, id string) (store.LetterJob, error)
	Jobs(ctx context.Context, limit int) ([]store.LetterJob, error)
	HoldJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job store.LetterJob, ok bool, err error)
	NextJob(ctx context.Context, sources []string) (time.Time, error)
	AdvanceJob(ctx context.Context, job store.LetterJob, handled []store.LetterID, h store.Handling, entry *store.AuditEntry) (store.JobState, error)
	SwitchJob(ctx context.Context, id string, before, after store.JobState, at time.Time, entry store.AuditEntry) error
}

var letterTopic = schemas.DeadLetterTopic("nexon")

// letter is that of the record at an offset, written at that time.
func letter(e schemas.Entity, offset int64) store.Letter {
	return store.Letter{
		LetterID: store.LetterID{Topic: schemas.DeadLetterTopic(e.Source), Partition: 3, Offset: offset}, Entity: e,
		Reason: schemas.Upstream4xx, Error: fmt.Sprint("error ", offset), Fingerprint: "f1", Status: 400, Attempts: 2, Replays: 1,
		At: at(offset), CorrelationID: fmt.Sprint("c", offset),
	}
}

func (b bench) bury(letters ...store.Letter) {
	b.Helper()
	for _, l := range letters {
		if err := b.store.Fail(b.Context(), store.Status{}, &l); err != nil {
			b.Fatal(err)
		}
	}
}

func (b bench) letters(source string, open bool, limit int) []store.Letter {
	b.Helper()
	f := store.LetterFilter{Source: source}
	if open {
		f.Handled = store.OpenLetters
	}
	all, err := b.store.Letters(b.Context(), f, store.Letter{}, limit)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

func auditOf(action string) store.AuditEntry {
	return store.AuditEntry{At: at(7), Actor: "me", Action: action, Source: "nexon", Before: []byte("null"), After: []byte("{}")}
}

// handle marks letters by a job made for that.
func (b bench) handle(h store.Handling, ids ...store.LetterID) {
	b.Helper()
	j := job(time.Now().UnixNano())
	j.Holder = "handler"
	if err := b.store.CreateJob(b.Context(), j, auditOf("x")); err != nil {
		b.Fatal(err)
	}
	j.State = store.JobDone
	if _, err := b.store.AdvanceJob(b.Context(), j, ids, h, nil); err != nil {
		b.Fatal(err)
	}
}

func testLetterVisibility(b bench) {
	public, staff, partner := letter(key("public"), 1), letter(key("staff"), 2), letter(key("partner"), 3)
	staff.Visibility, partner.Visibility = "staff", "partner"
	b.bury(public, staff, partner)
	for _, c := range []struct {
		visibilities []string
		want         []store.Letter
	}{
		{nil, []store.Letter{partner, staff, public}},
		{[]string{}, []store.Letter{public}},
		{[]string{"staff"}, []store.Letter{staff, public}},
		{[]string{"staff", "partner", "other"}, []store.Letter{partner, staff, public}},
		{[]string{"' OR '1'='1"}, []store.Letter{public}},
	} {
		filter := store.LetterFilter{Source: entity.Source, Visibilities: c.visibilities}
		got, err := b.store.Letters(b.Context(), filter, store.Letter{}, 9)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			b.Errorf("letters within %q: got %+v, %v, want %+v", c.visibilities, got, err, c.want)
		}
		groups, err := b.store.GroupLetters(b.Context(), filter, 9)
		if err != nil || len(groups) != 1 || groups[0].Count != int64(len(c.want)) || groups[0].Of.All != int64(len(c.want)) {
			b.Errorf("groups within %q: got %+v, %v, want one of %d", c.visibilities, groups, err, len(c.want))
		}
	}
}

func testLetters(b bench) {
	is := func(open bool, limit int, want ...store.Letter) {
		b.Helper()
		if got := b.letters("nexon", open, limit); len(got) != len(want) || (len(want) > 0 && !reflect.DeepEqual(got, want)) {
			b.Fatalf("letters\n%+v, want\n%+v", got, want)
		}
	}
	is(true, 9)
	undecoded := letter(schemas.Entity{Source: "nexon"}, 2)
	undecoded.Reason, undecoded.Attempts, undecoded.CorrelationID = schemas.Undecodable, 0, ""
	one, three, other := letter(entity, 1), letter(entity, 3), letter(schemas.Entity{Source: "nexo", Facet: "f", Key: "a"}, 4)
	s := failing(entity, 1)
	s.State = store.Failed
	if err := b.store.Fail(b.Context(), s, &three); err != nil {
		b.Fatal(err)
	}
	b.hasStatus(s)
	b.bury(one, undecoded, other)
	b.isWell(undecoded.Entity)
	repeated := three
	repeated.Attempts = 99
	b.bury(repeated)
	is(true, 9, three, undecoded, one)
	is(true, 2, three, undecoded)

	unknown := letter(entity, 77).LetterID
	b.handle(store.Handling{How: store.Purged, At: at(50)})
	b.handle(store.Handling{How: store.Replayed, By: "me", Job: "j", At: at(50)}, three.LetterID, unknown, one.LetterID, three.LetterID)
	b.handle(store.Handling{How: store.Purged, By: "you", At: at(51)}, one.LetterID, undecoded.LetterID)
	for _, l := range []*store.Letter{&one, &three} {
		l.Handled, l.HandledAt, l.HandledBy, l.Job = store.Replayed, at(50), "me", "j"
	}
	undecoded.Handled, undecoded.HandledAt, undecoded.HandledBy = store.Purged, at(51), "you"
	is(true, 9)
	is(false, 9, three, undecoded, one)
	anew := letter(key("other"), 3) // the topic was made anew
	anew.At = at(60)
	b.bury(anew)
	is(true, 9, anew)
	is(false, 9, anew, undecoded, one)
}

// chosen returns the offsets of the chosen letters, by both ways of listing them.
func (b bench) chosen(f store.LetterFilter) []int64 {
	b.Helper()
	f.Source = "nexon"
	found := map[int64]bool{}
	var newest []int64
	behind := store.Letter{}
	for {
		page, err := b.store.Letters(b.Context(), f, behind, 2)
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
	last := store.LetterID{Partition: -1}
	walked := 0
	for {
		page, err := b.store.WalkLetters(b.Context(), f, last, 2)
		if err != nil {
			b.Fatal(err)
		}
		for _, l := range page {
			if !found[l.Offset] || l.Partition < last.Partition || l.Partition == last.Partition && l.Offset <= last.Offset {
				b.Errorf("%+v is walked past behind %+v", l.LetterID, last)
			}
			last = l.LetterID
			walked++
		}
		if len(page) < 2 {
			break
		}
	}
	if walked != len(newest) {
		b.Errorf("%d letters are walked along, %d listed", walked, len(newest))
	}
	return newest
}

func testLetterFilter(b bench) {
	for n := range int64(6) {
		l := letter(entity, n+1)
		l.Partition = int32(n % 2)
		if n == 4 {
			l.At = at(4) // as the one before: the place tells them apart
		}
		if n == 5 {
			l.Entity.Facet, l.Entity.Key, l.Reason, l.Fingerprint, l.Attempts = "guild", "x", schemas.ParseError, "f2", 5
		}
		b.bury(l)
	}
	b.bury(letter(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: entity.Key}, 9))
	b.handle(store.Handling{How: store.Replayed, At: at(9)}, store.LetterID{Topic: letterTopic, Partition: 0, Offset: 1})
	b.handle(store.Handling{How: store.Purged, At: at(9)}, store.LetterID{Topic: letterTopic, Partition: 1, Offset: 2})
	five, one, two := 5, int32(1), int64(2)
	for name, test := range map[string]struct {
		filter store.LetterFilter
		want   []int64
	}{
		"all":         {store.LetterFilter{}, []int64{6, 4, 5, 3, 2, 1}},
		"open":        {store.LetterFilter{Handled: store.OpenLetters}, []int64{6, 4, 5, 3}},
		"handled":     {store.LetterFilter{Handled: store.HandledLetters}, []int64{2, 1}},
		"purged":      {store.LetterFilter{Handled: store.Purged}, []int64{2}},
		"reason":      {store.LetterFilter{Reason: schemas.ParseError}, []int64{6}},
		"fingerprint": {store.LetterFilter{Fingerprint: "f2"}, []int64{6}},
		"facet":       {store.LetterFilter{Facet: "guild"}, []int64{6}},
		"key":         {store.LetterFilter{Key: entity.Key}, []int64{4, 5, 3, 2, 1}},
		"times":       {store.LetterFilter{Since: at(2), Until: at(4)}, []int64{3, 2}},
		"attempts":    {store.LetterFilter{Attempts: &five}, []int64{6}},
		"one":         {store.LetterFilter{Partition: &one, Offset: &two}, []int64{2}},
		"several":     {store.LetterFilter{Key: entity.Key, Since: at(3), Handled: store.OpenLetters}, []int64{4, 5, 3}},
	} {
		if got := b.chosen(test.filter); !reflect.DeepEqual(got, test.want) {
			b.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func testLetterGroups(b bench) {
	for n := range int64(6) {
		l := letter(entity, n+1)
		if l.Replays = 0; n == 1 {
			l.Replays = schemas.MaxReplays
		}
		if n == 4 {
			l.Fingerprint, l.Status = "f2", 0
		}
		if n == 5 {
			l.Entity, l.Reason, l.Fingerprint, l.Status = schemas.Entity{Source: entity.Source}, schemas.Undecodable, "", 0
		}
		b.bury(l)
	}
	b.handle(store.Handling{How: store.Purged, At: at(9)}, letter(entity, 1).LetterID)
	of := store.LetterCount{All: 5, Spent: 1, Undecoded: 1}
	want := []store.LetterGroup{
		{Reason: schemas.Upstream4xx, Fingerprint: "f1", Facet: entity.Facet, Status: 400, Error: "error 4", Count: 3, First: at(2), Last: at(4), Spent: 1, Of: of},
		{Reason: schemas.Undecodable, Error: "error 6", Count: 1, First: at(6), Last: at(6), Of: of},
		{Reason: schemas.Upstream4xx, Fingerprint: "f2", Facet: entity.Facet, Error: "error 5", Count: 1, First: at(5), Last: at(5), Of: of},
	}
	f := store.LetterFilter{Source: "nexon", Handled: store.OpenLetters}
	if got, err := b.store.GroupLetters(b.Context(), f, 9); err != nil || !reflect.DeepEqual(got, want) {
		b.Errorf("%+v, %v", got, err)
	}
	if got, err := b.store.GroupLetters(b.Context(), f, 1); err != nil || !reflect.DeepEqual(got, want[:1]) {
		b.Errorf("%+v, %v", got, err)
	}
}

func testLetterPrefixes(b bench) {
	var ids []store.LetterID
	for n := range int64(12) {
		l := letter(entity, n/2+1)
		l.Partition = int32(n % 2)
		ids = append(ids, l.LetterID)
		if n/2 != 4 || n%2 == 0 { // of partition 1, offset 5 is missing
			b.bury(l)
		}
	}
	is := func(young, missing int64, before0, before1 int64) {
		b.Helper()
		want := []store.LetterPrefix{{Partition: 0, First: 1, Last: 6, Before: before0, Fresh: missing <= 1}, {Partition: 1, First: 1, Last: 6, Before: before1, Fresh: missing <= 1}}
		if got, err := b.store.LetterPrefixes(b.Context(), letterTopic, at(young), at(missing)); err != nil || !slices.Equal(got, want) {
			b.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	is(99, 99, 1, 1)
	b.handle(store.Handling{How: store.Purged, At: at(9)}, ids[0], ids[2], ids[4], ids[1], ids[3], ids[5], ids[7], ids[11])
	is(99, 99, 4, 7)
	is(99, 7, 4, 7)
	is(99, 6, 4, 5) // the entry of 5 may yet be written
	is(99, 1, 4, 5)
	is(3, 99, 3, 3) // what is young is not passed over
	is(6, 99, 4, 6)
	forget := func(partition int32, before int64, limit, want int) {
		b.Helper()
		if n, err := b.store.ForgetLetters(b.Context(), store.LetterID{Topic: letterTopic, Partition: partition, Offset: before}, limit); n != want || err != nil {
			b.Errorf("%d were forgotten, %v; want %d", n, err, want)
		}
	}
	forget(1, 7, 3, 3)
	forget(1, 7, 3, 2)
	forget(0, 4, 9, 3)
	if got := b.letters("nexon", false, 9); len(got) != 3 || got[0].Offset != 6 || got[2].Offset != 4 {
		b.Errorf("%+v", got)
	}
}
