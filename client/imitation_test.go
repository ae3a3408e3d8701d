package client_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/freshet/freshet/schemas/openapitest"
)

// imitation is a server that imitates a query service with one facet, nexon/character.
type imitation struct {
	*httptest.Server
	mu      sync.Mutex
	levels  map[string]int // level of each character, by the key of the character
	changed chan struct{}  // channel that is closed at the next change of any character
}

// startImitation starts an imitation with characters of level 1.
func startImitation(keys ...string) *imitation {
	s := &imitation{levels: map[string]int{}, changed: make(chan struct{})}
	for _, key := range keys {
		s.levels[key] = 1
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/nexon/character/{key}", s.read)
	mux.HandleFunc("GET /v1/nexon/character/{key}/events", s.events)
	s.Server = httptest.NewServer(mux)
	return s
}

// LevelUp changes the snapshot of a character, as after a refresh.
func (s *imitation) LevelUp(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.levels[key]++
	close(s.changed)
	s.changed = make(chan struct{})
}

// level returns the level of a character, and a channel that is closed at the next change.
func (s *imitation) level(key string) (level int, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.levels[key], s.changed
}

const checkedAt = "2026-11-20T20:38:00Z"

func etagOf(level int) string { return fmt.Sprintf(`W/"%d"`, level) }

func (s *imitation) read(w http.ResponseWriter, r *http.Request) {
	level, _ := s.level(r.PathValue("key"))
	w.Header().Set("ETag", etagOf(level))
	w.Header().Set("Cache-Control", "private, max-age=900")
	if r.Header.Get("If-None-Match") == etagOf(level) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"snapshot":{"basic":{"level":%d}},"freshness":"FRESH","lastUpdatedAt":%q,"lastCheckedAt":%[2]q}`, level, checkedAt)
}

// events sends an event with the stored state, and then an event after each change of the
// character.
func (s *imitation) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for sent := 0; ; {
		level, changed := s.level(r.PathValue("key"))
		if level != sent {
			data, _ := json.Marshal(map[string]string{"freshness": "FRESH", "lastUpdatedAt": checkedAt, "lastCheckedAt": checkedAt, "etag": etagOf(level)})
			_, _ = fmt.Fprintf(w, "id: %d.x\nevent: changed\ndata: %s\n\n", level, data)
			_ = http.NewResponseController(w).Flush() // an error of Flush means that the client has disconnected
			sent = level
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func TestImitation_FollowsTheContract(t *testing.T) {
	s := startImitation("somebody")
	defer s.Close()
	for _, etag := range []string{"", etagOf(1)} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nexon/character/somebody", nil)
		r.Header.Set("If-None-Match", etag)
		w := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(w, r)
		if !openapitest.Check(t, openapitest.Exchange{Request: r, Status: w.Code, Header: w.Header(), Response: w.Body.String()}) {
			t.Errorf("ETag %q: got no operation of the contract, want one", etag)
		}
	}
}
