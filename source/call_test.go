package source

import (
	"bytes"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
)

func TestCallResult_RefusedOnlyByAQuotaOfTheSource(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(`{"error":"limit"}`)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   bool
	}{
		"200":             {func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"a":1}`)) }, false},
		"404":             {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, false},
		"400":             {func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) }, false},
		"500":             {func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }, false},
		"429":             {func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) }, true},
		"401":             {func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, false},
		"maintenance":     {func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"error":"maintenance"}`)) }, false},
		"quota of a call": {func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"error":"call"}`)) }, false},
		"quota in a body": {func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"error":"limit"}`)) }, true},
		"quota compressed": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
		}, true},
		"no response": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) { c.answer(w) })
			s := testSource(t, url, func(c *Config) {
				c.Rules = []Rule{
					{Body: &Match{Name: "error", Equals: "limit"}, Class: Quota},
					{Body: &Match{Name: "error", Equals: "maintenance"}, Class: Maintenance},
					{Body: &Match{Name: "error", Equals: "call"}, Class: Quota, Block: BlockCall},
				}
			})
			results := &resultRecorder{}
			if _, err := fetch(t, t.Context(), s, results); err != nil {
				t.Fatal(err)
			}
			if got := results.all[len(results.all)-1].Refused(); got != c.want {
				t.Errorf("Refused: got %v, want %v", got, c.want)
			}
		})
	}
}

func TestCallResult_OutcomeOfEachResponse(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"200":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"a":1}`)) }, "2xx"},
		"204":         {status(http.StatusNoContent), "2xx"},
		"304":         {status(http.StatusNotModified), "304"},
		"302":         {status(http.StatusFound), "other"},
		"400":         {status(http.StatusBadRequest), "4xx"},
		"403":         {status(http.StatusForbidden), "4xx"},
		"404":         {status(http.StatusNotFound), "404"},
		"429":         {status(http.StatusTooManyRequests), "429"},
		"503":         {status(http.StatusServiceUnavailable), "5xx"},
		"599":         {status(599), "5xx"},
		"no response": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "other"},
		"half a body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"a":`))
		}, "other"},
		"no response in time": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "timeout"},
		"half a body in time": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			s := testSource(t, serve(t, c.answer), func(config *Config) {
				if c.want == "timeout" {
					config.Timeout = 50 * time.Millisecond
				}
			})
			results := &resultRecorder{}
			if _, err := fetch(t, t.Context(), s, results); err != nil {
				t.Fatal(err)
			}
			if got := results.all[len(results.all)-1].Outcome(); got != c.want {
				t.Errorf("Outcome: got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCallResult_OutcomeIsListed(t *testing.T) {
	for code := range 1000 {
		for _, err := range []error{nil, errTimeout, errConnectionClosed} {
			if got := (CallResult{Status: code, Err: err}).Outcome(); !slices.Contains(CallOutcomes[:], got) {
				t.Fatalf("Outcome of %d, %v: got %q, want one of %q", code, err, got, CallOutcomes)
			}
		}
	}
}
