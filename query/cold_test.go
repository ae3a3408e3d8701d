package query

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func BenchmarkColdRead(b *testing.B) {
	r := newRig(b)
	one := r.putSnapshot("a", time.Minute, func(s *store.Snapshot) {
		s.Payload = store.Encode(make([]byte, 0)).Bytes
		s.Payload = append(s.Payload, make([]byte, 8000)...)
	})
	reqs := make([]*http.Request, 20000)
	for i := range reqs {
		s := one
		s.Entity = entity(strconv.Itoa(i))
		r.snapshots[s.Entity] = s
		reqs[i] = httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/v1/nexon/character/"+strconv.Itoa(i), nil)
		reqs[i].Header.Set("Accept-Encoding", "zstd")
	}
	w := &discardWriter{http.Header{}}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		clear(w.h)
		r.server.ServeHTTP(w, reqs[i%len(reqs)])
		i++
	}
}
