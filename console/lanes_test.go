package console

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

func TestLanes_ShowsStalledLane(t *testing.T) {
	for _, c := range []struct {
		lane       LaneLag
		wait, tone string
		wrong      string
		processes  []limiter.ProcessView
	}{
		{testLane(schemas.Low, 0, 0), "nothing", toneOK, "", nil},
		{testLane(schemas.Low, 9, 30*time.Second), "30 s", toneOK, "", nil},
		{testLane(schemas.Low, 9, 5*time.Minute), "5 min", toneWarn, "nexon: the lag of its LOW lane is 5 min, with 9 records.", nil},
		{LaneLag{schemas.Low, 9, time.Second, true, true, 50 * time.Second}, "50 s", toneOK, "", nil}, // the workers stopped 50 s ago: Wait is still too low, so StalledFor must be shown as the lag
		{stalledLane(schemas.Low, 9, 5*time.Second), "not known yet", "", "", nil},
		{stalledLane(schemas.Low, 12_480, 55*time.Second), "not known: no worker has processed a record for 55 s", toneBad, "nexon: 12,480 records wait in its LOW lane, and no worker has processed one for 55 s: no worker is running.", nil},
		{stalledLane(schemas.Low, 1, 20*time.Second), "not known: no worker has processed a record for 20 s", toneBad, "nexon: 1 record waits in its LOW lane, and no worker has processed one for 20 s.", []limiter.ProcessView{{Process: "worker-1"}}},
		{LaneLag{Lane: schemas.Low}, "not known", toneWarn, "nexon: the lag of its LOW lane is unknown.", nil},
	} {
		of := &sourceSample{Lanes: []LaneLag{c.lane}, Limits: &limiter.View{State: limiter.StateFlowing, Processes: c.processes}}
		if got := laneRows(of)[0][4]; got.Text != c.wait || got.Tone != c.tone {
			t.Errorf("lane %+v: got %q in %q, want %q in %q", c.lane, got.Text, got.Tone, c.wait, c.tone)
		}
		of.Limits = nil // the lag must have the tone c.tone even if the limiter can't be read
		if got := laneRows(of)[0][4]; got.Tone != c.tone {
			t.Errorf("lane %+v without the limiter: got %q in %q, want it in %q", c.lane, got.Text, got.Tone, c.tone)
		}
		of.Limits = &limiter.View{State: limiter.StateFlowing, Processes: c.processes}
		f := liveStatus{Items: map[string]statusItem{}, Rows: map[string][][]statusItem{}}
		f.addProblems(&sample{At: testNow, Sources: map[string]*sourceSample{"nexon": of}}, []string{"nexon"})
		got := ""
		for _, row := range f.Rows["problems"] {
			got += row[0].Text
			if row[0].Tone != c.tone {
				t.Errorf("tone of %s: got %s, want %s", row[0].Text, row[0].Tone, c.tone)
			}
		}
		if got != c.wrong {
			t.Errorf("got %q\nwant\n%q", got, c.wrong)
		}
	}
}

func TestWhyStale_NamesStalledLane(t *testing.T) {
	e := Entity{Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}, Request: RequestState{Lane: schemas.Low, Number: 5, Issued: 5, Confirmed: true}}
	for _, c := range []struct {
		lane LaneLag
		want string
	}{
		{stalledLane(schemas.Low, 900, time.Minute), "A request waits in the LOW lane, after at most 900 other records, which no worker has processed for 1 min."},
		{stalledLane(schemas.Low, 1, time.Second), "A request waits in the LOW lane, after at most 1 other record, whose processing time is not known yet."},
		{LaneLag{Lane: schemas.Low}, "A request waits in the LOW lane."},
	} {
		if got := whyStale(e, surroundings{lanes: []LaneLag{c.lane}}, testNow); !strings.Contains(got, c.want) {
			t.Errorf("got %s\nwant\n%s", got, c.want)
		}
	}
}
