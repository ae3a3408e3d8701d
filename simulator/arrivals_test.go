package simulator

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// maxInWindow returns the maximum number of arrivals within a closed window that starts or ends
// at an arrival. It compares every pair of the arrival times, so it is slow but simple.
func maxInWindow(times []int64, length int64) int {
	most := 0
	for _, from := range times {
		n := 0
		for _, at := range times {
			if at >= from && at <= from+length {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func TestStats_AgreeWithBruteForce(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 99))
		limits := []Limit{
			{1 + rng.IntN(40), time.Duration(1+rng.IntN(3_000_000)) * time.Microsecond},
			{1 + rng.IntN(200), time.Duration(1+rng.IntN(9_000_000)) * time.Microsecond},
		}
		b := newArrivalLog(limits)
		var times []int64
		var refused int
		at := int64(0)
		for range 600 {
			switch rng.IntN(4) {
			case 0: // the arrival has the same time as the previous arrival
			case 1:
				at += int64(rng.IntN(500))
			case 2:
				at += int64(rng.IntN(50_000))
			case 3: // the arrival is about one window length, or a quarter of it, later than the previous arrival
				at += []int64{1_000_000, 1_000_001, 999_999, limits[0].Window.Microseconds(), limits[0].Window.Microseconds() + 1}[rng.IntN(5)] / int64(1+3*rng.IntN(2))
			}
			times = append(times, at)
			over := false
			for _, l := range limits {
				n := 0
				for _, earlier := range times {
					if earlier >= at-l.Window.Microseconds() {
						n++
					}
				}
				over = over || n > l.Limit
			}
			got := b.add(at, call{path: "/p"})
			if got != over {
				t.Fatalf("seed %d: arrival %d: got refused %v, brute force says %v", seed, len(times), got, over)
			}
			if over {
				refused++
			}
		}
		if b.refused != refused || b.windows[0].max != maxInWindow(times, 1_000_000) {
			t.Errorf("seed %d: got %d refused, want %d; got %d in a second, want %d", seed, b.refused, refused, b.windows[0].max, maxInWindow(times, 1_000_000))
		}
		// New limits must apply to all arrivals in the log, even to earlier ones.
		later := append(slices.Clone(limits), Limit{1, time.Duration(1+rng.IntN(5_000_000)) * time.Microsecond})
		b.setLimits(later)
		for i, l := range later {
			if got, want := b.windows[i+1].max, maxInWindow(times, l.Window.Microseconds()); got != want {
				t.Errorf("seed %d: window %v: got maximum %d, want %d", seed, l.Window, got, want)
			}
		}
	}
}

func TestQuota_CountsRejectedArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Limits: []Limit{{3, time.Second}, {9, time.Minute}}})
		status := func() int { return get(t, s, equipment+"a").Code }
		var got []int
		for range 4 {
			got = append(got, status())
		}
		<-time.After(time.Second) // the closed window that ends with the next call, exactly one second later, contains the first four calls
		got = append(got, status())
		<-time.After(time.Second + time.Microsecond)
		got = append(got, status(), status(), status())
		<-time.After(time.Second + time.Microsecond)
		got = append(got, status(), status()) // the last call must be refused: it is the tenth arrival in a minute that allows 9
		if want := []int{200, 200, 200, 429, 429, 200, 200, 200, 200, 429}; !slices.Equal(got, want) {
			t.Errorf("got statuses %v, want %v", got, want)
		}
		w := get(t, s, equipment+"a")
		if w.Code != 429 || errorName(t, w.Body.Bytes()) != "OPENAPI00007" || w.Header().Get("Retry-After") != "" {
			t.Errorf("got response %d %s", w.Code, w.Body)
		}
		st := s.Stats()
		if st.Arrivals != 11 || st.Refused != 4 || st.Accepted != 7 || st.MaxInSlidingSecond != 5 || st.MaxPerWindow[0].Max != 5 || st.MaxPerWindow[1].Max != 11 {
			t.Errorf("got stats %+v", st)
		}
	})
}

func TestQuota_RejectsWithoutLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Limits: []Limit{{1, time.Hour}}, Latency: Range{time.Minute, time.Minute}})
		get(t, s, equipment+"a")
		began := time.Now()
		if w := get(t, s, equipment+"a"); w.Code != 429 || time.Since(began) != 0 {
			t.Errorf("got status %d after %v", w.Code, time.Since(began))
		}
	})
}

func TestStats_CountsByPathAndStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		began := time.Now()
		for i := range 10 {
			get(t, s, fmt.Sprint(equipment, i%3))
			<-time.After(time.Millisecond)
		}
		get(t, s, "/maplestory/v1/character/basic?ocid=0")
		get(t, s, "/maplestory/v1/id?character_name=x")
		get(t, s, "/maplestory/v1/character/none?ocid=0")
		get(t, s, "/_stats")
		get(t, s, "/_nothing")
		var st Stats
		if err := json.Unmarshal(get(t, s, "/_stats").Body.Bytes(), &st); err != nil {
			t.Fatal(err)
		}
		if st.Arrivals != 13 || st.DistinctKeys != 4 || st.MaxPerKeyAndPath != 4 || st.InFlight != 0 || st.MaxInFlight != 1 {
			t.Errorf("got stats %+v", st)
		}
		if st.ByStatus[200] != 12 || st.ByStatus[400] != 1 || st.ByPath["/maplestory/v1/character/item-equipment"] != 10 || st.ByPath["/maplestory/v1/character/none"] != 1 {
			t.Errorf("got statuses %v and paths %v", st.ByStatus, st.ByPath)
		}
		if !st.FirstArrival.Equal(began) || !st.LastArrival.Equal(began.Add(10*time.Millisecond)) || st.Sustained != nil {
			t.Errorf("got first arrival %v, last %v, sustained %v", st.FirstArrival, st.LastArrival, st.Sustained)
		}
	})
}

func TestStats_SustainedSkipsBothEnds(t *testing.T) {
	b := newArrivalLog(nil)
	at := int64(0)
	for i := range 2500 {
		switch {
		case i < 500, i >= 2000: // the first and the last 500 arrivals come at a lower rate
			at += 1_000_000
		default:
			at += 2000
		}
		b.add(at, call{path: "/p"})
		if i == 1498 && b.sustained() != nil {
			t.Error("got a sustained rate for fewer than 1,500 arrivals")
		}
	}
	if rate := b.sustained(); rate == nil || *rate < 499.9 || *rate > 500.1 {
		t.Errorf("got sustained rate %v", rate)
	}
}

func TestStats_RecordsUnknownCalls(t *testing.T) {
	s := New(Config{})
	hostile := []string{
		"/maplestory/v1/character/basic/../stat?ocid=a", "/maplestory/v1/character/basic%2F..%2Fstat?ocid=a", "/x?y=%00",
	}
	injected := []string{equipment + "a&ocid=b", equipment + "a&world=b", equipment + "a;b", "/maplestory/v1/id?character_name=a&date=2026-01-01", equipment + "%zz"}
	harmless := []string{equipment + "a%26ocid%3Db", equipment + "..%2Fstat", equipment + "%00%0d%0a", equipment + "a&date=2026-01-01"}
	for _, target := range slices.Concat(hostile, injected, harmless) {
		get(t, s, target)
	}
	st := s.Stats()
	if !slices.Equal(st.UnknownPaths, hostile) || st.UnknownPathCalls != 3 {
		t.Errorf("got unknown paths %q", st.UnknownPaths)
	}
	if !slices.Equal(st.UnknownParameters, injected) || st.UnknownParameterCalls != 5 {
		t.Errorf("got unknown parameters %q", st.UnknownParameters)
	}
	for i := range 300 {
		get(t, s, fmt.Sprintf("/flood/%d", i))
		get(t, s, fmt.Sprintf("%sa&%d=1", equipment, i))
	}
	st = s.Stats()
	if len(st.UnknownPaths) != 100 || st.UnknownPathCalls != 303 || len(st.UnknownParameters) != 100 || st.UnknownParameterCalls != 305 || len(st.ByPath) > 110 {
		t.Errorf("got %d paths of %d calls, %d parameters of %d calls, %d entries in ByPath", len(st.UnknownPaths), st.UnknownPathCalls, len(st.UnknownParameters), st.UnknownParameterCalls, len(st.ByPath))
	}
	total := 0
	for _, n := range st.ByPath {
		total += n
	}
	if total != st.Arrivals {
		t.Errorf("counts by path: got %d, want %d", total, st.Arrivals)
	}
}

func TestArrivals_AreListedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Limits: []Limit{{chunkLength + 5, time.Hour}}})
		const n = chunkLength + 10
		for i := range n {
			get(t, s, fmt.Sprint("/maplestory/v1/id?character_name=", i))
			if i%100 == 0 {
				<-time.After(time.Millisecond)
			}
		}
		lines, i, last := bufio.NewScanner(get(t, s, "/_arrivals").Body), 0, int64(-1)
		for ; lines.Scan(); i++ {
			var a arrivalLine
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
			status := 200
			if i >= chunkLength+5 {
				status = 429
			}
			if a.At < last || a.Path != "/maplestory/v1/id" || a.Key != strconv.Itoa(i) || a.Status != status {
				t.Fatalf("line %d: got %+v", i, a)
			}
			last = a.At
		}
		if i != n || last != int64(chunkLength/100+1)*1000 {
			t.Errorf("got %d lines, the last at %d", i, last)
		}
	})
}

func TestReset_KeepsRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Limits: []Limit{{2, time.Hour}}})
		before := get(t, s, equipment+"a").Body.String()
		control(t, s, `{"changePercent": 100, "faults": [{"kind":"hang","key":"waits"}]}`)
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			get(t, s, equipment+"waits")
		}()
		synctest.Wait()
		if w := post(t, s, "/_reset", ""); w.Code != http.StatusNoContent {
			t.Fatal(w.Code)
		}
		if st := s.Stats(); st.Arrivals != 0 || st.InFlight != 1 || st.MaxInFlight != 1 || st.MaxPerWindow[0].Max != 0 || len(st.ByPath) != 0 || !st.FirstArrival.IsZero() {
			t.Errorf("got stats %+v", st)
		}
		after := get(t, s, equipment+"a")
		if after.Code != 200 || after.Body.String() == before {
			t.Error("reset did not restore the quota, or it changed the revision")
		}
		s.Close()
		<-done
		if st := s.Stats(); st.InFlight != 0 || st.ByStatus[0] != 0 || st.ByStatus[200] != 1 {
			t.Errorf("response to an arrival before the reset was counted: %+v", st)
		}
	})
}

func TestArrival_Is16Bytes(t *testing.T) {
	if n := unsafe.Sizeof(arrival{}); n > 24 {
		t.Errorf("got %d bytes; 20 million arrivals must need less than 1 GB", n)
	}
}

// BenchmarkArrive records one arrival with two limits and 200,000 keys.
func BenchmarkArrive(b *testing.B) {
	keys := make([]string, 200_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("%032x", i)
	}
	book := newArrivalLog([]Limit{{500, time.Second}, {20_000_000, 24 * time.Hour}})
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		book.add(int64(i)*2222, call{path: "/maplestory/v1/character/basic", endpoint: &endpoint{}, key: keys[i*7919%len(keys)]})
		i++
	}
}
