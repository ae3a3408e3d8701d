package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Control changes a running simulator. It is the JSON body of POST /_control. Settings that are
// missing stay as they are.
type Control struct {
	// ChangePercent increases the revision of a percentage of all entities, from 0 to 100 in
	// steps of 0.01. The seed and the key (ocid) decide which entities change. Equal percentages
	// change the same entities. A larger percentage includes the entities of a smaller
	// percentage.
	ChangePercent float64 `json:"changePercent,omitempty"`
	Latency       *Range  `json:"latency,omitempty"`
	// Limits replaces all limits; empty but not nil removes them. New limits apply to all
	// arrivals since the last reset.
	Limits []Limit `json:"limits,omitzero"`
	// APIKey is the only accepted x-nxopen-api-key; "" accepts every request.
	APIKey   *string `json:"apiKey,omitempty"`
	Identity *bool   `json:"identity,omitempty"`
	// Renames sets the ocid that a character name has from now on, by name. An empty ocid means that no
	// character has the name. Names are compared without case.
	Renames map[string]string `json:"renames,omitempty"`
	// Faults replaces all fault rules; empty but not nil removes them.
	Faults []Fault `json:"faults,omitzero"`
}

// controlHelp is appended to the error message for an invalid control request.
const controlHelp = `allowed are {"changePercent": 50, "latency": {"min": "30ms", "max": "1.7s"}, ` +
	`"limits": [{"limit": 500, "window": "1s"}], "apiKey": "…", "identity": true, "renames": {"name": "ocid"}, ` +
	`"faults": [{"path": "regexp", "key": "regexp", "percent": 100, "count": 3, "kind": "…", ` +
	`"retryAfter": "2", "headers": {"X-RateLimit-Reset": "30"}, "bytes": 1000000, "depth": 1000, "location": "…"}]}; kinds are `

// settings are the values that Control changes. Simulator.mu guards them.
type settings struct {
	latency   Range
	apiKey    string
	identity  bool
	renames   map[string]string // ocids by character name in lower case
	rules     []*rule
	revisions [buckets]uint32
}

// Control applies a change. If any part of it is invalid, it changes nothing.
func (s *Simulator) Control(c Control) error {
	var rules []*rule
	errs := []error{checkLimits(c.Limits)}
	for i, f := range c.Faults {
		r, err := f.compile()
		if err != nil {
			err = fmt.Errorf("faults[%d]: %w", i, err)
		}
		rules, errs = append(rules, r), append(errs, err)
	}
	if c.ChangePercent < 0 || c.ChangePercent > 100 {
		errs = append(errs, fmt.Errorf("changePercent: %v must be from 0 to 100", c.ChangePercent))
	}
	if c.Latency != nil {
		errs = append(errs, c.Latency.check())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range int(c.ChangePercent*buckets/100 + 0.5) {
		s.settings.revisions[i]++
	}
	if c.Latency != nil {
		s.settings.latency = *c.Latency
	}
	if c.APIKey != nil {
		s.settings.apiKey = *c.APIKey
	}
	if c.Identity != nil {
		s.settings.identity = *c.Identity
	}
	for name, ocid := range c.Renames {
		if s.settings.renames == nil {
			s.settings.renames = map[string]string{}
		}
		s.settings.renames[strings.ToLower(name)] = ocid
	}
	if c.Faults != nil {
		s.settings.rules = rules
	}
	if c.Limits != nil {
		s.recorder.setLimits(append([]Limit{}, c.Limits...))
	}
	return nil
}

// CurrentControl returns the latency and the fault rules that are in effect now. Passing the result
// to Control later restores them.
func (s *Simulator) CurrentControl() Control {
	s.mu.Lock()
	defer s.mu.Unlock()
	latency, faults := s.settings.latency, make([]Fault, 0, len(s.settings.rules))
	for _, r := range s.settings.rules {
		faults = append(faults, r.fault)
	}
	return Control{Latency: &latency, Faults: faults}
}

func checkLimits(limits []Limit) error {
	for i, l := range limits {
		if l.Limit < 1 || l.Window < time.Microsecond {
			return fmt.Errorf(`limits[%d]: needs a positive limit and a window of at least 1µs, for example {"limit": 500, "window": "1s"}`, i)
		}
	}
	return nil
}

// serveOperator answers the endpoints that are not part of the simulated API.
func (s *Simulator) serveOperator(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /_stats":
		stats, err := s.statsFor(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(stats) // fails only if the client has disconnected
	case "GET /_arrivals":
		w.Header().Set("Content-Type", "application/x-ndjson")
		_ = s.recorder.writeArrivals(w)
	case "POST /_reset":
		s.recorder.reset()
		w.WriteHeader(http.StatusNoContent)
	case "POST /_control":
		var c Control
		err := decodeStrict(http.MaxBytesReader(w, r.Body, 1<<20), &c)
		if err == nil {
			err = s.Control(c)
		}
		if err != nil {
			http.Error(w, fmt.Sprintf("%v; %s%s", err, controlHelp, kindList()), http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Error(w, "unknown endpoint; use GET /_stats, GET /_arrivals, POST /_control or POST /_reset", http.StatusNotFound)
	}
}

// statsFor returns the stats, with Since set if the query of GET /_stats requests it.
func (s *Simulator) statsFor(query url.Values) (Stats, error) {
	stats := s.Stats()
	if len(query) == 0 {
		return stats, nil
	}
	n, window := 0, time.Second
	for name, values := range query {
		var err error
		switch name {
		case "since":
			n, err = strconv.Atoi(values[0])
		case "window":
			window, err = time.ParseDuration(values[0])
		default:
			err = errors.New("unknown")
		}
		if err != nil || n < 0 || window < time.Microsecond {
			return Stats{}, fmt.Errorf("invalid parameter %s=%s; GET /_stats?since=120&window=1m describes the arrivals after the first 120 and their maximum in a minute", name, values[0])
		}
	}
	since := s.Since(n, window)
	stats.Since = &since
	return stats, nil
}

// decodeStrict decodes exactly one JSON value and rejects unknown fields.
func decodeStrict(from io.Reader, into any) error {
	d := json.NewDecoder(from)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected text after the JSON value")
	}
	return nil
}

// jsonDuration is a duration written as a JSON string: "1.7s".
type jsonDuration time.Duration

func (s jsonDuration) MarshalText() ([]byte, error) { return []byte(time.Duration(s).String()), nil }

func (s *jsonDuration) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = jsonDuration(d)
	return err
}

type limitJSON struct {
	Limit  int          `json:"limit"`
	Window jsonDuration `json:"window"`
}

// MarshalJSON writes the window as a string: "1s".
func (l Limit) MarshalJSON() ([]byte, error) {
	return json.Marshal(limitJSON{l.Limit, jsonDuration(l.Window)})
}

// UnmarshalJSON rejects unknown fields.
func (l *Limit) UnmarshalJSON(text []byte) error {
	var in limitJSON
	err := decodeStrict(bytes.NewReader(text), &in)
	*l = Limit{in.Limit, time.Duration(in.Window)}
	return err
}

type rangeJSON struct {
	Min jsonDuration `json:"min"`
	Max jsonDuration `json:"max"`
}

// MarshalJSON writes the bounds as strings: "30ms".
func (r Range) MarshalJSON() ([]byte, error) {
	return json.Marshal(rangeJSON{jsonDuration(r.Min), jsonDuration(r.Max)})
}

// UnmarshalJSON rejects unknown fields.
func (r *Range) UnmarshalJSON(text []byte) error {
	var in rangeJSON
	err := decodeStrict(bytes.NewReader(text), &in)
	*r = Range{time.Duration(in.Min), time.Duration(in.Max)}
	return err
}
