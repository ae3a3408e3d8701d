package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkCredits compares a query service with credits and one without credits, in the same
// installation and in alternate rounds. It reports the p50 of the time from a refresh until Kafka has
// acknowledged it, and the rate of reads of one stored entity. It also reports the ratios of both
// figures.
func BenchmarkCredits(b *testing.B) {
	const rounds, refreshes, readers = 20, 50, 8
	p := newPaid(b)
	p.Env = append(p.Env, "FRESHET_ACCESS_LIMITS_OUTSTANDING=0s", "FRESHET_ACCESS_LIMITS_REQUESTS=0")
	apis := map[string]string{"with": p.query()}
	token, _ := p.key(apis["with"], "client")
	p.Settings = ""
	apis["without"] = p.query()
	p.worker()
	p.refresh(apis["with"], token, "stored")
	p.untilStored(timeout, 1)
	header := []string{"Authorization", "Bearer " + token}
	refresh := func(api string, n int) (all []time.Duration) {
		for i := range n {
			began := time.Now()
			status, text, err := p.send(b.Context(), http.MethodPost, fmt.Sprintf("%s/v1/%s/character/k%d-%d/refresh", api, p.Source, began.UnixNano(), i), "", header...)
			if all = append(all, time.Since(began)); err != nil || status != http.StatusAccepted {
				b.Fatalf("refresh: got %d %.200s, %v, want 202", status, text, err)
			}
		}
		return all
	}
	read := func(api string) float64 {
		ctx, cancel := context.WithTimeout(b.Context(), *round/5)
		defer cancel()
		var n atomic.Int64
		var all sync.WaitGroup
		began := time.Now()
		for range readers {
			all.Go(func() {
				for ctx.Err() == nil {
					status, text, err := p.send(ctx, http.MethodGet, api+"/v1/"+p.Source+"/character/stored", "", header...)
					if ctx.Err() == nil && (err != nil || status != http.StatusOK) {
						b.Errorf("read: got %d %.200s, %v, want 200", status, text, err)
						return
					}
					n.Add(1)
				}
			})
		}
		all.Wait()
		return float64(n.Load()) / time.Since(began).Seconds()
	}
	for _, api := range apis { // fill the caches of the services; this round is not measured
		refresh(api, 20)
		read(api)
	}
	for b.Loop() {
		took, rates := map[string][]time.Duration{}, map[string][]float64{}
		for i := range rounds {
			order := []string{"with", "without"}
			if i%2 == 1 {
				slices.Reverse(order)
			}
			for _, name := range order {
				took[name] = append(took[name], refresh(apis[name], refreshes)...)
			}
			p.untilCommitted() // the reads are measured without refreshes in progress
			for _, name := range order {
				rates[name] = append(rates[name], read(apis[name]))
			}
		}
		b.ReportMetric(median(took["with"]).Seconds()*1000, "ms-refresh-with")
		b.ReportMetric(median(took["without"]).Seconds()*1000, "ms-refresh-without")
		b.ReportMetric(float64(median(took["with"]))/float64(median(took["without"])), "refresh-ratio")
		b.ReportMetric(median(rates["with"]), "reads/s-with")
		b.ReportMetric(median(rates["without"]), "reads/s-without")
		b.ReportMetric(median(rates["with"])/median(rates["without"]), "reads-ratio")
	}
}

func median[N time.Duration | float64](all []N) N {
	slices.Sort(all)
	return all[len(all)/2]
}
