package simulator

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const equipment = "/maplestory/v1/character/item-equipment?ocid="

// get calls the handler directly; headers are pairs of name and value.
func get(t testing.TB, s *Simulator, target string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func post(t testing.TB, s *Simulator, target, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func control(t testing.TB, s *Simulator, body string) {
	t.Helper()
	if w := post(t, s, "/_control", body); w.Code != http.StatusNoContent {
		t.Fatalf("control %s: got %d %s", body, w.Code, w.Body)
	}
}

func errorName(t testing.TB, body []byte) string {
	t.Helper()
	var e struct {
		Error struct{ Name, Message string }
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error.Message == "" {
		t.Fatalf("%.80q: got error %v, want an error body", body, err)
	}
	return e.Error.Name
}

func gunzip(t testing.TB, from io.Reader) []byte {
	t.Helper()
	r, err := gzip.NewReader(from)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func TestHeaders_MatchRealAPI(t *testing.T) {
	s := New(Config{})
	for target, status := range map[string]int{equipment + "a": 200, equipment: 400} {
		h := get(t, s, target).Header()
		if h.Get("Server") != "inface" || h.Get("Cache-Control") != "no-cache, no-store, max-age=0, must-revalidate" ||
			h.Get("Content-Type") != "application/json;charset=UTF-8" {
			t.Errorf("status %d: got headers %v", status, h)
		}
		for name := range h {
			if name == "Etag" || name == "Retry-After" || strings.Contains(strings.ToLower(name), "ratelimit") {
				t.Errorf("status %d: the real API does not send %s", status, name)
			}
		}
	}
}

func TestGzip_OnlyIfAccepted(t *testing.T) {
	s := New(Config{})
	for accept, want := range map[string]bool{
		"gzip": true, "": false, "identity": false, "gzip;q=0": false, "GZIP ; q=0.3": true, "*": true, "*;q=0": false,
		"br, *;q=0.1, gzip;q=0": false, "deflate, br": false, "br,gzip": true, "gzip;q=none": false,
	} {
		w := get(t, s, equipment+"a", "Accept-Encoding", accept)
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != want {
			t.Errorf("Accept-Encoding %q: got compressed %v", accept, got)
		}
	}
	control(t, s, `{"identity": true}`)
	if w := get(t, s, equipment+"a", "Accept-Encoding", "gzip"); w.Header().Get("Content-Encoding") != "" || !json.Valid(w.Body.Bytes()) {
		t.Error("got a compressed response with Identity")
	}
}

func TestGzip_GoClientReadsSameBody(t *testing.T) {
	server := httptest.NewServer(New(Config{}))
	defer server.Close()
	read := func(compressed bool) string {
		tr := &http.Transport{DisableCompression: !compressed}
		defer tr.CloseIdleConnections()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+equipment+"a", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: tr}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.Uncompressed != compressed {
			t.Errorf("compression %v: got compressed response %v", compressed, resp.Uncompressed)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	if a, b := read(true), read(false); a != b || !json.Valid([]byte(a)) {
		t.Errorf("got %d bytes compressed, %d plain, or invalid JSON", len(a), len(b))
	}
}

func TestErrors_MatchRealAPI(t *testing.T) {
	s := New(Config{})
	for target, want := range map[string]string{
		equipment + "notfound-1":                       "OPENAPI00003",
		equipment:                                      "OPENAPI00004",
		equipment + "a&date=yesterday":                 "OPENAPI00004",
		equipment + "a&ocid=b":                         "OPENAPI00004",
		"/maplestory/v1/id":                            "OPENAPI00004",
		"/maplestory/v1/character/nothing?ocid=a":      "OPENAPI00006",
		"/maplestory/v1/character/basic/../stat?ocid=": "OPENAPI00006",
		"/maplestory/v1/character%2Fbasic?ocid=a":      "OPENAPI00006",
		"/": "OPENAPI00006",
	} {
		w := get(t, s, target)
		if name := errorName(t, w.Body.Bytes()); w.Code != 400 || name != want {
			t.Errorf("%s: got %d %s, want %s", target, w.Code, name, want)
		}
	}
	if w := post(t, s, equipment+"a", ""); w.Code != 405 || w.Header().Get("Allow") != "GET" {
		t.Errorf("POST: got status %d", w.Code)
	}
}

func TestAPIKey_IsCheckedIfSet(t *testing.T) {
	s := New(Config{})
	status := func(headers ...string) int { return get(t, s, equipment+"a", headers...).Code }
	if status() != 200 || status("x-nxopen-api-key", "any") != 200 {
		t.Error("a key is required by default")
	}
	control(t, s, `{"apiKey": "right"}`)
	if status() != 400 || status("x-nxopen-api-key", "wrong") != 400 || status("x-nxopen-api-key", "right") != 200 {
		t.Error("the key is not checked")
	}
	control(t, s, `{"apiKey": ""}`)
	if status() != 200 {
		t.Error("the key is still checked")
	}
}

func TestLatency_Distribution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Range{30 * time.Millisecond, 1700 * time.Millisecond}
		s := New(Config{Latency: r})
		var took []time.Duration
		for range 2000 {
			began := time.Now()
			get(t, s, "/maplestory/v1/id?character_name=a")
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		if took[0] < r.Min || took[len(took)-1] > r.Max {
			t.Errorf("got latencies from %v to %v", took[0], took[len(took)-1])
		}
		if median := took[len(took)/2]; median < 2*r.Min || median > 5*r.Min {
			t.Errorf("got median %v", median)
		}
		if p98 := took[len(took)*98/100]; p98 > r.Max/2 || took[len(took)-1] < r.Max/4 {
			t.Errorf("got p98 %v, maximum %v", p98, took[len(took)-1])
		}
		for _, c := range []string{`{"min":"50ms","max":"50ms"}`, `{"min":"0s","max":"50ms"}`, `{"min":"40ms","max":"60ms"}`} {
			control(t, s, `{"latency":`+c+`}`)
			began := time.Now()
			get(t, s, equipment+"a")
			var want Range
			_ = json.Unmarshal([]byte(c), &want)
			if d := time.Since(began); d < want.Min || d > want.Max {
				t.Errorf("%s: got %v", c, d)
			}
		}
		control(t, s, `{"latency":{"min":"0s","max":"0s"}}`)
		began := time.Now()
		get(t, s, equipment+"a")
		if time.Since(began) != 0 {
			t.Error("got a delay without latency")
		}
	})
}

// synctest.Test returns only after all goroutines have ended, so this test also finds leaks.
func TestLatency_EndsWithClient(t *testing.T) {
	for _, fault := range []string{`[]`, `[{"kind":"hang"}]`, `[{"kind":"slow-body"}]`} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{Latency: Range{time.Hour, time.Hour}})
			if fault != `[]` {
				control(t, s, `{"latency":{"min":"0s","max":"0s"}}`)
			}
			control(t, s, `{"faults":`+fault+`}`)
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, equipment+"a", http.NoBody)
				s.ServeHTTP(httptest.NewRecorder(), r)
			}()
			synctest.Wait()
			if st := s.Stats(); st.InFlight != 1 {
				t.Errorf("%s: got %d in flight", fault, st.InFlight)
			}
			began := time.Now()
			leave()
			<-done
			if st := s.Stats(); st.InFlight != 0 || time.Since(began) != 0 {
				t.Errorf("%s: got %d in flight after %v", fault, st.InFlight, time.Since(began))
			}
		})
	}
}

func TestClose_DropsWaitingRequests(t *testing.T) {
	s := New(Config{})
	control(t, s, `{"faults":[{"kind":"hang","count":3}]}`)
	arrived := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		s.ServeHTTP(w, r)
	}))
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+equipment+"a", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := server.Client().Do(r)
			if err == nil {
				_ = resp.Body.Close()
				t.Errorf("got status %d", resp.StatusCode)
			}
		})
	}
	for range 3 {
		<-arrived
	}
	s.Close()
	s.Close()
	clients.Wait()
	server.Close() // Close returns only after all handlers have returned
	if st := s.Stats(); st.InFlight != 0 || st.ByStatus[0] != 3 {
		t.Errorf("got stats %+v", st)
	}
}

func TestSimulator_IsConcurrencySafe(t *testing.T) {
	s := New(Config{Limits: []Limit{{100, time.Millisecond}}})
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 25 {
				get(t, s, fmt.Sprint(equipment, g, "-", i), "Accept-Encoding", "gzip")
				switch i % 5 {
				case 0:
					control(t, s, `{"changePercent":10,"faults":[{"kind":"500","percent":50}],"limits":[{"limit":100,"window":"2ms"}]}`)
				case 1:
					get(t, s, "/_stats")
				case 2:
					get(t, s, "/_arrivals")
				case 3:
					if g == 0 {
						post(t, s, "/_reset", "")
					}
				}
			}
		})
	}
	all.Wait()
	if st := s.Stats(); st.InFlight != 0 {
		t.Errorf("got %d in flight", st.InFlight)
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// BenchmarkItemEquipment also reports the share of one CPU core that 450 requests per second need.
func BenchmarkItemEquipment(b *testing.B) {
	for _, coding := range []string{"gzip", "identity"} {
		b.Run(coding, func(b *testing.B) {
			s := New(Config{Limits: []Limit{{500, time.Second}, {20_000_000, 24 * time.Hour}}})
			var requests []*http.Request
			for i := range 1024 {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, fmt.Sprint(equipment, "key-", i), http.NoBody)
				r.Header.Set("Accept-Encoding", coding)
				requests = append(requests, r)
				s.ServeHTTP(discard{http.Header{}}, r)
			}
			if err := s.Control(Control{Limits: []Limit{{1 << 40, time.Second}, {1 << 40, 24 * time.Hour}}}); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.ServeHTTP(discard{http.Header{}}, requests[i%len(requests)])
				i++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)*450/1e9, "cores@450/s")
		})
	}
}

// BenchmarkNew measures the start of a simulator and the first request for each of the 64
// generated bodies of the document item-equipment.
func BenchmarkNew(b *testing.B) {
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			New(Config{Pretty: true})
		}
	})
	b.Run("wardrobe", func(b *testing.B) {
		c := newContent(1, true)
		for b.Loop() {
			c.fill(&itemSet{}, 1)
		}
	})
}
