package query

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
)

// BenchmarkItems_Stream compares the time to read all items as a stream over HTTP with the time to read
// them from the database only.
func BenchmarkItems_Stream(b *testing.B) {
	r := newItemRig(b)
	var texts []string
	for n := range 20_000 {
		texts = append(texts, fmt.Sprintf("i%05d=%01000d", n, n))
	}
	r.page(texts...)
	server := httptest.NewServer(r.server)
	defer server.Close()
	items := itemReader{r.server}
	n := 0
	var bare, stream time.Duration
	for b.Loop() {
		began := time.Now()
		span := collection.Range{Limit: streamedItems}
		for {
			some, err := items.read(b.Context(), entity("k"), span)
			if err != nil {
				b.Fatal(err)
			}
			if len(some) == 0 {
				break
			}
			last := some[len(some)-1]
			span.AfterVersion, span.AfterID = last.Version, last.ID
		}
		bare += time.Since(began)
		began = time.Now()
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, server.URL+"/v1/nexon/character/k/items", http.NoBody)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Accept", ndjson)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
		stream += time.Since(began)
		n += len(texts)
	}
	b.ReportMetric(float64(n)/stream.Seconds(), "items/s")
	b.ReportMetric(bare.Seconds()/stream.Seconds(), "×store")
	b.ReportMetric(0, "ns/op")
}
