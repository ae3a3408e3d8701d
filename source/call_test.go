package source

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/klauspost/compress/gzip"
)

func TestCallResult_RefusedByClass(t *testing.T) {
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
		"401":             {func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, true},
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
				c.Rules = []Rule{{Body: &Match{Name: "error", Equals: "limit"}, Class: Quota}}
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
