package main

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

func TestMetrics_HistogramsHaveBothBucketKinds(t *testing.T) {
	d := startDev(t, "--no-demo")
	d.until("a fresh answer", "somebody", isFresh)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.api+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	resp, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	from := expfmt.NewDecoder(resp.Body, expfmt.ResponseFormat(resp.Header))
	histograms := 0
	for {
		var family dto.MetricFamily
		if err := from.Decode(&family); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if family.GetType() != dto.MetricType_HISTOGRAM || !strings.HasPrefix(family.GetName(), "freshet_") {
			continue
		}
		histograms++
		for _, m := range family.GetMetric() {
			h := m.GetHistogram()
			if len(h.GetBucket()) < 5 || h.Schema == nil || h.ZeroThreshold == nil {
				t.Errorf("%s: got %d classic buckets, native schema %v, zero threshold %v; want at least 5, a schema, a threshold",
					family.GetName(), len(h.GetBucket()), h.Schema, h.ZeroThreshold)
			}
		}
	}
	if histograms < 9 {
		t.Errorf("histograms: got %d, want at least 9", histograms)
	}
}
