package simulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// since returns the field Since of GET /_stats, which describes all arrivals except the first n.
func since(t *testing.T, s *Simulator, n int, window string) Since {
	t.Helper()
	var st Stats
	w := get(t, s, fmt.Sprintf("/_stats?since=%d&window=%s", n, window))
	if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil || st.Since == nil {
		t.Fatalf("got %d %s: %v", w.Code, w.Body, err)
	}
	return *st.Since
}

func TestStats_SinceCountsOutageProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		targets := []string{equipment + "a", "/maplestory/v1/character/basic?ocid=b", "/maplestory/v1/id?character_name=c", "/nowhere"}
		for _, target := range targets {
			get(t, s, target)
		}
		control(t, s, `{"faults": [{"kind": "500"}]}`)
		mark := s.Stats().Arrivals
		for i := range 12 { // 12 calls during the outage: every five seconds three calls at once
			if w := get(t, s, targets[i%len(targets)]); w.Code != http.StatusInternalServerError {
				t.Errorf("%s during the outage: got status %d", targets[i%len(targets)], w.Code)
			}
			if i%3 == 2 {
				<-time.After(5 * time.Second)
			}
		}
		control(t, s, `{"faults": [{"kind": "503-maintenance"}]}`)
		get(t, s, equipment+"a")
		want := Since{
			Arrivals: 13, ByStatus: map[int]int{500: 12, 503: 1}, ByFault: map[Kind]int{InternalError: 12, Maintenance: 1},
			Window: "10s", MaxInWindow: 9, // three arrivals each at 0, 5 and 10 s: the window includes both of its ends
		}
		if got := since(t, s, mark, "10s"); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got := since(t, s, mark, "1s"); got.MaxInWindow != 3 {
			t.Errorf("got %+v", got)
		}
		control(t, s, `{"faults": []}`)
		for i, want := range []int{200, 200, 200, 400} {
			if w := get(t, s, targets[i]); w.Code != want {
				t.Errorf("%s after the outage: got status %d", targets[i], w.Code)
			}
		}
		if got := since(t, s, mark+13, "1m"); got.Arrivals != 4 || len(got.ByFault) != 0 || got.MaxInWindow != 4 {
			t.Errorf("after the outage: got %+v", got)
		}
		st := s.Stats()
		if st.Arrivals != 21 || st.Refused != 0 || st.ByStatus[500] != 12 || st.ByFault[InternalError] != 12 || st.ByFault[Maintenance] != 1 || st.Since != nil {
			t.Errorf("got stats %+v", st)
		}
		faults := strings.Count(get(t, s, "/_arrivals").Body.String(), `"fault":"500"`)
		if faults != 12 {
			t.Errorf("got %d lines of /_arrivals with the fault", faults)
		}
		if got := since(t, s, 1000, "1s"); got.Arrivals != 0 || got.MaxInWindow != 0 {
			t.Errorf("since a future arrival: got %+v", got)
		}
	})
}

func TestFault_HangCountsAsArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Limits: []Limit{{2, time.Hour}}})
		control(t, s, `{"faults": [{"kind": "hang"}]}`)
		for range 2 {
			go func() {
				defer func() { _ = recover() }()
				get(t, s, equipment+"a")
			}()
		}
		synctest.Wait()
		if got := since(t, s, 0, "1s"); got.Arrivals != 2 || got.ByFault[Hang] != 2 || got.ByStatus[0] != 2 {
			t.Errorf("got stats %+v", got)
		}
		if w := get(t, s, equipment+"a"); w.Code != http.StatusTooManyRequests || s.Stats().ByFault[Hang] != 2 {
			t.Errorf("hanging calls do not count against the quota: got status %d", w.Code)
		}
		s.Close()
		synctest.Wait()
	})
}

func TestStats_RejectsInvalidQuery(t *testing.T) {
	s := New(Config{})
	for _, query := range []string{"since=-1", "since=x", "since=", "window=0s", "window=10", "since=1&until=2"} {
		if w := get(t, s, "/_stats?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "since=120&window=1m") {
			t.Errorf("%s: got %d %s", query, w.Code, w.Body)
		}
	}
}
