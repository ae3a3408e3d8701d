package simulator

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestControl_RejectsInvalidRequest(t *testing.T) {
	s := New(Config{})
	before := get(t, s, equipment+"a").Body.String()
	for body, want := range map[string]string{
		`{"changePercents": 50}`: "changePercents",
		`{"changePercent": 101}`: "changePercent",
		`{"changePercent": -1}`:  "changePercent",
		`{"changePercent": 100, "latency": {"min": "2s", "max": "1s"}}`:            "latency",
		`{"latency": {"min": "2s", "max": "1s", "mean": "1s"}}`:                    "mean",
		`{"latency": {"min": "30", "max": "1s"}}`:                                  "30",
		`{"changePercent": 100, "limits": [{"limit": 0, "window": "1s"}]}`:         "limits[0]",
		`{"limits": [{"limit": 1, "window": "1s"}, {"limit": 1, "window": "0s"}]}`: "limits[1]",
		`{"limits": [{"limit": 1, "window": "1s", "burst": 3}]}`:                   "burst",
		`{"changePercent": 100, "faults": [{"kind": "500"}, {"kind": "501"}]}`:     `faults[1]: unknown kind "501"`,
		`{"faults": [{}]}`:                                                             "unknown kind",
		`{"faults": [{"kind": "500", "key": "("}]}`:                                    "regexp",
		`{"faults": [{"kind": "500", "path": "("}]}`:                                   "regexp",
		`{"faults": [{"kind": "500", "percent": 101}]}`:                                "percent",
		`{"faults": [{"kind": "500", "count": 0}]}`:                                    "count",
		`{"faults": [{"kind": "500", "retryAfter": "1"}]}`:                             "retryAfter",
		`{"faults": [{"kind": "oversize"}]}`:                                           "bytes",
		`{"faults": [{"kind": "oversize", "bytes": 13}]}`:                              "at least 14",
		`{"faults": [{"kind": "500", "bytes": 100}]}`:                                  "bytes",
		`{"faults": [{"kind": "deep"}]}`:                                               "depth",
		`{"faults": [{"kind": "deep", "depth": -1}]}`:                                  "depth",
		`{"faults": [{"kind": "redirect"}]}`:                                           "location",
		`{"faults": [{"kind": "hang", "location": "/"}]}`:                              "location",
		`{"faults": [{"kind": "hang", "probability": 1}]}`:                             "probability",
		`{"faults": [{"kind": "429", "headers": {"X-RateLimit-Reset": "3\r\nX: y"}}]}`: "not a valid header",
		`{"faults": [{"kind": "429", "headers": {"X RateLimit": "3"}}]}`:               "not a valid header",
		`{"faults": [{"kind": "429", "headers": {"content-length": "3"}}]}`:            "describes the body",
		`{"faults": [{"kind": "hang", "headers": {"X-A": "3"}}]}`:                      "no response",
		`{"changePercent": 100} {}`:                                                    "after",
		`nonsense`:                                                                     "invalid",
		``:                                                                             "EOF",
		`{"apiKey": "` + strings.Repeat("x", 1<<20) + `"}`:                             "too large",
	} {
		w := post(t, s, "/_control", body)
		text := w.Body.String()
		if w.Code != http.StatusBadRequest || !strings.Contains(text, want) || !strings.Contains(text, "changePercent") || !strings.Contains(text, "slow-body") {
			t.Errorf("%.80s: got %d %s", body, w.Code, text)
		}
	}
	if get(t, s, equipment+"a").Body.String() != before {
		t.Error("a rejected request changed the content")
	}
	if st := s.Stats(); st.Arrivals != 2 {
		t.Errorf("control requests count as arrivals: %d", st.Arrivals)
	}
}

func TestControl_RoundTripsJSON(t *testing.T) {
	for _, c := range []Control{
		{},
		{ChangePercent: 12.5, Latency: &Range{time.Millisecond, time.Second}, APIKey: new(""), Identity: new(false)},
		{Limits: []Limit{}, Faults: []Fault{}},
		{Limits: []Limit{{500, time.Second}}, Faults: []Fault{{Kind: Deep, Depth: 3, Headers: map[string]string{"X-A": "b"}, Percent: new(0.0), Count: new(1)}}},
	} {
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back Control
		if err := decodeStrict(strings.NewReader(string(text)), &back); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s: got %+v, error %v", text, back, err)
		}
	}
}

func TestControl_ReplacesAndRemovesLimits(t *testing.T) {
	s := New(Config{Limits: []Limit{{1, time.Hour}}})
	status := func() int { return get(t, s, equipment+"a").Code }
	if status() != 200 || status() != 429 {
		t.Error("limit of 1 is not enforced")
	}
	control(t, s, `{"limits": [{"limit": 3, "window": "1h"}]}`)
	if status() != 200 || status() != 429 {
		t.Error("new limit ignores earlier arrivals")
	}
	control(t, s, `{"changePercent": 1}`)
	if status() != 429 {
		t.Error("a control request without limits removed them")
	}
	control(t, s, `{"limits": []}`)
	if status() != 200 || len(s.Stats().MaxPerWindow) != 0 {
		t.Error("limits are not removed")
	}
}

func TestOperator_UnknownCallListsEndpoints(t *testing.T) {
	s := New(Config{})
	for _, w := range []int{get(t, s, "/_control").Code, get(t, s, "/_x").Code, post(t, s, "/_stats", "").Code} {
		if w != http.StatusNotFound {
			t.Errorf("got status %d", w)
		}
	}
	if s.Stats().Arrivals != 0 {
		t.Error("operator calls count as arrivals")
	}
}

func TestConfig_RejectsInvalid(t *testing.T) {
	for _, c := range []Config{{Limits: []Limit{{}}}, {Latency: Range{Min: 2, Max: 1}}, {Latency: Range{Min: -1}}} {
		if c.Validate() == nil {
			t.Errorf("%+v: got no error", c)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New did not panic for %+v", c)
				}
			}()
			New(c)
		}()
	}
}

func TestCurrentControl_ReturnsLastSettings(t *testing.T) {
	s := New(Config{Latency: Range{Max: time.Second}})
	if got := s.CurrentControl(); *got.Latency != (Range{Max: time.Second}) || got.Faults == nil || len(got.Faults) > 0 {
		t.Errorf("initial settings: got %+v", got)
	}
	half, latency := 50.0, Range{Min: time.Second, Max: time.Minute}
	want := Control{Latency: &latency, Faults: []Fault{{Kind: Reset, Percent: &half}, {Kind: TooManyRequests, RetryAfter: "3"}}}
	if err := s.Control(want); err != nil {
		t.Fatal(err)
	}
	if err := s.Control(Control{ChangePercent: 1}); err != nil { // this change must keep the latency and the faults
		t.Fatal(err)
	}
	got := s.CurrentControl()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if again := New(Config{}); again.Control(got) != nil || !reflect.DeepEqual(again.CurrentControl(), want) {
		t.Errorf("second simulator: got %+v", again.CurrentControl())
	}
}
