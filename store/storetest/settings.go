package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/freshet/freshet/store"
)

// change returns the setting of a source with revision n, and the audit entry of the change.
func change(source string, n int64) (store.Setting, store.AuditEntry) {
	value := func(n int64) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"n":%d,"a": "é"}`, n)) }
	return store.Setting{Source: source, Value: value(n), Revision: n, ChangedAt: at(n), ChangedBy: fmt.Sprint("by ", n)},
		store.AuditEntry{At: at(n), Actor: fmt.Sprint("by ", n), Action: "set", Source: source, Before: value(n - 1), After: value(n), Note: fmt.Sprint("n'", n)}
}

func (b suite) tryChange(source string, n int64) error {
	setting, entry := change(source, n)
	return b.store.ChangeSetting(b.Context(), setting, entry)
}

func (b suite) change(source string, n int64) {
	b.Helper()
	if err := b.tryChange(source, n); err != nil {
		b.Fatal(err)
	}
}

func (b suite) wantSetting(source string, n int64) {
	b.Helper()
	want := store.Setting{Source: source}
	if n > 0 {
		want, _ = change(source, n)
	}
	if got, err := b.store.Setting(b.Context(), source); err != nil || !reflect.DeepEqual(got, want) {
		b.Fatalf("setting of %s: got %+v, %v, want %+v", source, got, err, want)
	}
}

func (b suite) audit(limit int) []store.AuditEntry {
	b.Helper()
	all, err := b.store.Audit(b.Context(), limit)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

func testSetting(b suite) {
	b.wantSetting("nexon", 0)
	for n := int64(1); n <= 3; n++ {
		b.change("nexon", n)
		b.wantSetting("nexon", n)
		b.wantSetting("nexo", 0)
	}
	b.change("nexo", 1)
	b.wantSetting("nexo", 1)
	b.wantSetting("nexon", 3)
}

func testAudit(b suite) {
	if all := b.audit(10); len(all) != 0 {
		b.Fatalf("audit of an empty store: got %+v", all)
	}
	for n := int64(1); n <= 3; n++ {
		b.change("nexon", n)
	}
	for limit, want := range []int64{0, 1, 2, 3, 3} {
		all := b.audit(limit)
		if int64(len(all)) != want {
			b.Fatalf("Audit(%d): got %+v", limit, all)
		}
		for i, got := range all {
			_, e := change("nexon", 3-int64(i))
			e.ID = got.ID
			if !reflect.DeepEqual(got, e) || (i > 0 && got.ID >= all[i-1].ID) {
				b.Errorf("entry %d of %d: got %+v, want %+v", i, limit, got, e)
			}
		}
	}
}

func testSettingGuard(b suite) {
	b.change("nexon", 1)
	b.change("nexon", 2)
	for _, c := range []struct {
		source   string
		revision int64
	}{{"nexon", 1}, {"nexon", 2}, {"nexon", 4}, {"other", 2}, {"other", 7}} {
		if err := b.tryChange(c.source, c.revision); !errors.Is(err, store.ErrConflict) {
			b.Errorf("revision %d of %s: %v", c.revision, c.source, err)
		}
	}
	b.wantSetting("nexon", 2)
	b.wantSetting("other", 0)
	if n := len(b.audit(10)); n != 2 {
		b.Errorf("audit entries after two changes and five conflicts: %d", n)
	}
}

// testSettingRace changes one setting concurrently: only one writer succeeds with each revision.
func testSettingRace(b suite) {
	const writers, changes = 6, 8
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range writers {
		wg.Go(func() {
			for done := 0; done < changes; {
				s, err := b.store.Setting(b.Context(), "nexon")
				if err == nil {
					err = b.tryChange("nexon", s.Revision+1)
				}
				switch {
				case err == nil:
					done++
				case errors.Is(err, store.ErrConflict):
					refused.Add(1)
				default:
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.wantSetting("nexon", writers*changes)
	all := b.audit(1000)
	seen := map[string]bool{}
	for _, e := range all {
		seen[string(e.After)] = true
	}
	if len(all) != writers*changes || len(seen) != len(all) {
		b.Errorf("got %d audit entries of %d revisions, want %d; %d conflicts", len(all), len(seen), writers*changes, refused.Load())
	}
}

func used(day, calls, when int64) store.Usage {
	return store.Usage{DayEnd: at(day * 86400), Calls: calls, At: at(when)}
}

func testUsage(b suite) {
	is := func(what string, want store.Usage) {
		b.Helper()
		if got, err := b.store.Used(b.Context(), "nexon", "day"); err != nil || got != want {
			b.Fatalf("%s: got %+v, %v, want %+v", what, got, err, want)
		}
	}
	is("at first", store.Usage{})
	for _, step := range []struct {
		what      string
		set, want store.Usage
	}{
		{"a first count", used(1, 10, 10), used(1, 10, 10)},
		{"a higher one", used(1, 30, 20), used(1, 30, 20)},
		{"a lower one", used(1, 20, 30), used(1, 30, 20)},
		{"the same, later", used(1, 30, 40), used(1, 30, 40)},
		{"the same, from earlier", used(1, 30, 35), used(1, 30, 40)},
		{"an earlier day", used(0, 90, 50), used(1, 30, 40)},
		{"a later day", used(2, 0, 60), used(2, 0, 60)},
		{"the day before again", used(1, 99, 70), used(2, 0, 60)},
	} {
		if err := b.store.SetUsed(b.Context(), "nexon", "day", step.set); err != nil {
			b.Fatal(err)
		}
		is(step.what, step.want)
	}
	for _, other := range [][2]string{{"nexon", "hour"}, {"other", "day"}} {
		if err := b.store.SetUsed(b.Context(), other[0], other[1], used(9, 9, 9)); err != nil {
			b.Fatal(err)
		}
	}
	is("counts of others", used(2, 0, 60))
}

func testUsageRace(b suite) {
	const writers, counts = 4, 25
	var wg sync.WaitGroup
	for writer := range int64(writers) {
		wg.Go(func() {
			for n := range int64(counts) {
				if err := b.store.SetUsed(b.Context(), "nexon", "day", used(1, n*writers+writer, n)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := b.store.Used(b.Context(), "nexon", "day"); err != nil || got != used(1, writers*counts-1, counts-1) {
		b.Errorf("usage: got %+v, %v", got, err)
	}
}
