package console

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

type fakeSchedule rig

func (f *fakeSchedule) Schedule(_ context.Context, source string) status.Schedule {
	return f.sched[source]
}

// lowShare returns the maximum rate of the LOW lane in testView. Much of the daily quota is used
// up, so the policy "day" has the lowest limit: 70.7 calls a second.
func lowShare() limiter.Share {
	return limiter.Share{PerSecond: 70.7, Bounds: []limiter.Bound{
		{Kind: limiter.ByWindow, Policy: "second", PerSecond: 349.9, Reserved: 100},
		{Kind: limiter.ByDay, Policy: "day", PerSecond: 70.7, Reserved: 25},
	}}
}

// testSchedule returns a schedule with three facets: one in the mode "tiers", one in the mode
// "adaptive", and one that is not prefetched.
func testSchedule() status.Schedule {
	tier := func(every time.Duration, n int64) status.TierSchedule {
		return status.TierSchedule{Interval: every, Entities: status.Reading[int64]{Value: n}, Exact: n < 100_000}
	}
	rateCap := 250.0
	return status.Schedule{
		Facets: []status.FacetSchedule{
			{Facet: "character", Mode: "tiers", Tiers: [3]status.TierSchedule{tier(time.Hour, 1_204), tier(6*time.Hour, 18_340), tier(24*time.Hour, 902_411)}, Triggers: []status.TriggerSchedule{{Facet: "guild", Backoff: 10 * time.Minute, Quiet: time.Minute, MaxDelay: 10 * time.Minute}, {Facet: "ranking"}}},
			{Facet: "guild", Mode: modeAdaptive, MinInterval: 30 * time.Minute, MaxInterval: 7 * 24 * time.Hour, ReadyAt: testNow.Add(2 * time.Hour), Tiers: [3]status.TierSchedule{tier(time.Hour, 12), tier(time.Hour, 0), tier(time.Hour, 3)}},
			{Facet: "ranking", Mode: modeOff, Tiers: [3]status.TierSchedule{tier(time.Hour, 0), tier(time.Hour, 5), tier(time.Hour, 40)}},
		},
		Due: status.Due{
			At: testNow, MaxCounted: 1000, Next: testNow.Add(-40 * time.Minute),
			Tiers: []prefetched.TierBacklog{
				{Facet: "character", Tier: prefetched.Hot, Backlog: store.Backlog{Count: 3, Oldest: testNow.Add(-8 * time.Second)}, Last: testNow.Add(-time.Second)},
				{Facet: "character", Tier: prefetched.Warm, Backlog: store.Backlog{Count: 210, Oldest: testNow.Add(-40 * time.Minute)}, Last: testNow},
				{Facet: "guild", Tier: prefetched.Hot, Backlog: store.Backlog{Count: 12, Oldest: testNow.Add(-30 * time.Minute)}, Last: testNow},
			},
			Retries: store.Backlog{Count: 7, Oldest: testNow.Add(-11 * time.Minute)}, Scheduled: store.Backlog{Count: 1000, Oldest: testNow.Add(-11 * time.Minute)},
			Outbox: store.Backlog{Count: 2, Oldest: testNow.Add(-300 * time.Millisecond)},
		},
		FeedRate: status.Reading[float64]{Value: 70.7}, RateCap: &rateCap,
		Schedulers: status.Reading[[]status.Heartbeat]{Value: []status.Heartbeat{{Process: "host-a/412/QX7LMR2A", Age: 600 * time.Millisecond}, {Process: "host-b/97/PLK3ZZ9D", Age: 4 * time.Second}}},
		Requested:  new(int64(48_113)),
	}
}

// unprefetchedSchedule returns the schedule of a source with two facets, neither of which is
// prefetched.
func unprefetchedSchedule() status.Schedule {
	none := [3]status.TierSchedule{{Exact: true}, {Exact: true}, {Exact: true}}
	return status.Schedule{Facets: []status.FacetSchedule{{Facet: "repository", Mode: modeOff, Tiers: none}, {Facet: "user", Mode: modeOff, Tiers: none}}, Due: status.Due{At: testNow, MaxCounted: 1000}}
}

// rows returns the rows of the table with this id. The cells of a row are joined to one text.
func (d document) rows(id string) (all []string) {
	d.each(func(n *html.Node) {
		if attr(n, "data-rows") != id {
			return
		}
		for tr := range n.ChildNodes() {
			var cells []string
			for td := range tr.ChildNodes() {
				if td.Type == html.ElementNode {
					cells = append(cells, textOf(td))
				}
			}
			if len(cells) > 0 {
				all = append(all, strings.Join(strings.Fields(strings.Join(cells, " | ")), " "))
			}
		}
	})
	return all
}

func (d document) itemText(id string) (text string) {
	d.each(func(n *html.Node) {
		if attr(n, "data-item") == id {
			text = textOf(n)
		}
	})
	return text
}

// wantRows fails the test unless the table with this id has exactly these rows.
func (d document) wantRows(t *testing.T, id string, want ...string) {
	t.Helper()
	if got := d.rows(id); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s: got\n%s\nwant\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSchedule_ShowsTiersBudgetAndBacklogs(t *testing.T) {
	r := newRig(t)
	r.get(root)
	r.views["nexon"] = testView("nexon", 3*time.Second)
	d := r.get(root + "/schedule")
	d.wellFormed(t, "/schedule")
	if got, want := d.itemText("prefetch.nexon"), "prefetched"; got != want {
		t.Errorf("prefetch of nexon: got %q, want %q", got, want)
	}
	if got, want := d.itemText("schedule.nexon"), "The last scheduler tick was just now, on host-a/412/QX7LMR2A. LOW makes 300 of the allowed 71 calls a second. Prefetching may use 71 of these calls. "+
		"The oldest due entity has waited for 40 min. The scheduler of this process has requested 48,113 entities since it started."; got != want {
		t.Errorf("schedule of nexon: got %q, want %q", got, want)
	}
	d.wantRows(t, "tiers.nexon",
		"character | hot | 1,204 | every 1 h | 3 | 8 s",
		"character | warm | 18,340 | every 6 h | 210 | 40 min",
		"character | cold | about 902,411 | every 24 h | 0 | nothing",
		"guild | hot | 12 | every 30 min to 7 days, by its changes and reads | 12 | content is ready at 14:00",
		"guild | warm | 0 | every 30 min to 7 days, by its changes and reads | 0 | nothing",
		"guild | cold | 3 | every 30 min to 7 days, by its changes and reads | 0 | nothing",
		"ranking | all | 45 | on demand | | off")
	d.wantRows(t, "bounds.nexon",
		"share of second | 350 | 100", "rest of the day | 71 | 25",
		"LOW limit now | 71 |", "prefetch rate cap of this hour | 250 |", "prefetch limit now | 71 |")
	d.wantRows(t, "backlogs.nexon", retriesLabel+" | 7 | 11 min | 1,000 or more | due", outboxLabel+" | 2 | 300 ms | |")
	d.wantRows(t, "schedulers.nexon", "host-a/412/QX7LMR2A | just now | 50 %", "host-b/97/PLK3ZZ9D | 4 s ago | 50 %")
	d.wantRows(t, "triggers.nexon", "character | guild | a quiet time of 1 min, at most 10 min | 10 min", "character | ranking | at once | always")
	d.wantRows(t, "hooks.nexon", "changes | 1 min ago | 12,345 | 43 | unknown-key 40, bad-signature 3", "silent | none | 0 | 0 |")
	if got := d.itemText("schedule.github"); got != "github is fetched on demand: no facet is prefetched. LOW may make 71 calls a second. Its current rate appears in a few seconds." || d.itemText("prefetch.github") != "not prefetched" {
		t.Errorf("schedule of github: got %q, %q, want fetched on demand, not prefetched", got, d.itemText("prefetch.github"))
	}
}

func TestLanes_ShowRateAndLimit(t *testing.T) {
	r := newRig(t)
	r.get(root)
	r.views["nexon"] = testView("nexon", 3*time.Second)
	for _, path := range []string{"", "/queues"} {
		r.get(root+path).wantRows(t, "lanes.nexon", "HIGH | 12 | 448 | 0 | nothing", "LOW | 300 | 71 | 12,480 | 35 s")
	}
	v := r.views["nexon"]
	v.Low.PerSecond = 0
	r.views["nexon"] = v
	r.get(root).wantRows(t, "lanes.nexon", "HIGH | 12 | 448 | 0 | nothing", "LOW | 300 | 0 | 12,480 | 35 s")
	r.readErr = errBroken
	r.get(root).wantRows(t, "lanes.nexon", "HIGH | not known yet | not known | 0 | nothing", "LOW | not known yet | not known | 12,480 | 35 s")
}

func TestSchedule_ShowsUnknownValuesAndWhy(t *testing.T) {
	r := newRig(t)
	s := testSchedule()
	const down = "the database does not answer"
	s.Due = status.Due{Error: down, MaxCounted: 1000}
	for i := range s.Facets[0].Tiers {
		s.Facets[0].Tiers[i].Entities = status.Reading[int64]{Error: down}
	}
	s.FeedRate, s.Schedulers, s.Requested = status.Reading[float64]{Error: "Redis does not answer"}, status.Reading[[]status.Heartbeat]{Error: "Redis does not answer"}, nil
	r.sched["nexon"] = s
	d := r.get(root + "/schedule")
	if got := d.itemText("schedule.nexon"); got != "Whether a scheduler is running is unknown: Redis does not answer. LOW may make 71 calls a second. Its current rate appears in a few seconds. The prefetch rate is unknown: Redis does not answer. "+
		"The due entities are unknown: the database does not answer. The number of requests is a metric of the scheduler processes (prefetch_requested_total)." {
		t.Errorf("schedule of nexon: got %q, want each unknown part with its reason", got)
	}
	if got := d.rows("tiers.nexon")[0]; got != "character | hot | not known: the database does not answer | every 1 h | not known: the database does not answer | not known" {
		t.Errorf("tiers: got %q, want not known because the database does not answer", got)
	}
	d.wantRows(t, "backlogs.nexon", retriesLabel+" | not known: the database does not answer | | |", outboxLabel+" | not known: the database does not answer | | |")
	d.wantRows(t, "schedulers.nexon", "Not known: Redis does not answer.")

	s = testSchedule()
	s.Schedulers.Value = nil
	r.sched["nexon"] = s
	if d = r.get(root + "/schedule"); d.itemText("prefetch.nexon") != "no scheduler is running" || !strings.HasPrefix(d.itemText("schedule.nexon"), "No scheduler is running, so nothing is prefetched.") {
		t.Errorf("schedule without schedulers: got %q, %q, want no scheduler is running",
			d.itemText("prefetch.nexon"), d.itemText("schedule.nexon"))
	}
	if got := r.get(root).text(); !strings.Contains(got, "nexon: no scheduler is running, so nothing is prefetched.") {
		t.Error("the overview does not list the problem")
	}
}

func TestSchedule_UnreadableIsNotEmpty(t *testing.T) {
	r := newRig(t)
	r.sched["nexon"] = status.Schedule{}
	d := r.get(root + "/schedule")
	if got := d.itemText("schedule.nexon"); d.itemText("prefetch.nexon") != "not known" || !strings.HasPrefix(got, "The schedule of nexon could not be read; try again in a moment. LOW ") {
		t.Errorf("unreadable schedule: got %q, %q, want not known, could not be read", d.itemText("prefetch.nexon"), got)
	}
	d.wantRows(t, "schedulers.nexon", "Not available: the read failed.")
}

func TestSchedule_MarksTruncatedCounts(t *testing.T) {
	s := testSchedule()
	s.Due.MaxCounted = 225 // as many entities were counted as MaxCounted allows, so more entities may be due
	facet := s.Facets[0]
	for tier, want := range map[prefetched.Tier]string{prefetched.Hot: "3 or more, 8 s", prefetched.Warm: "210 or more, 40 min", prefetched.Cold: "not counted, at most 5 s"} {
		due, behind := dueCells(s.Due, facet, tier, testNow.Add(5*time.Second))
		if tier != prefetched.Cold {
			due, behind = dueCells(s.Due, facet, tier, testNow)
		}
		if got := due.Text + ", " + behind.Text; got != want {
			t.Errorf("%v: %s, want %s", tier, got, want)
		}
	}
}

func TestSchedule_ExplainsZeroFeedRate(t *testing.T) {
	flowing := func(low float64) *limiter.View {
		return &limiter.View{State: limiter.StateFlowing, Low: limiter.Share{PerSecond: low}}
	}
	lane := func(l LaneLag) []LaneLag { l.Lane = schemas.Low; return []LaneLag{{Lane: schemas.High}, l} }
	for want, of := range map[string]sourceSample{
		"the limiter could not be read":                  {},
		"stopped by an operator, until it is resumed":    {Limits: &limiter.View{State: limiter.StateStopped}},
		"LOW may make no call now; see the bounds below": {Limits: flowing(0)},
		"the prefetch rate cap of this hour is 0":        {Limits: flowing(9), Schedule: status.Schedule{RateCap: new(0.0)}},
		"the backlog of the LOW lane is unknown":         {Limits: flowing(9), Lanes: lane(LaneLag{})},
		"the lag of the LOW lane is 20 min":              {Limits: flowing(9), Lanes: lane(LaneLag{RecordsKnown: true, Records: 5, Wait: 20 * time.Minute})},
		"no worker has processed the LOW lane recently":  {Limits: flowing(9), Lanes: lane(LaneLag{RecordsKnown: true, Records: 5})},
	} {
		if got := noFeedReason(&of); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
