package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// untilFlooded waits until the refreshes of the flood use the upstream's whole quota. After a
// timeout it returns nil, because each phase judges the rate of calls itself.
func (s *site) untilFlooded(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, rate, began := 0, 0, time.Now()
	for rate < minFloodRate && time.Since(began) < harness.Timeout {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		st, err := s.Stats(ctx)
		if err != nil {
			return err
		}
		rate = max(rate, st.Arrivals-last)
		last = st.Arrivals
	}
	fmt.Fprintf(s.Out, "the flood reached %d calls a second after %v\n\n", rate, time.Since(began).Round(time.Second))
	return nil
}

// flood is a load of reads of stale keys at a constant rate. Each read enqueues a refresh. The
// read is conditional (If-None-Match), so its response has no body.
type flood struct {
	sent    atomic.Int64
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// flood starts a flood through the query service at a URL.
func (s *site) flood(ctx context.Context, api string) *flood {
	f := &flood{}
	ctx, f.cancel = context.WithCancel(ctx)
	next := make(chan int, floodConcurrency)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: floodConcurrency}, Timeout: harness.Timeout}
	f.running.Go(func() {
		defer close(next)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		for n := 0; ; {
			for ; n < int(time.Since(began).Seconds()*floodRate); n++ {
				select {
				case next <- n % floodKeys:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	for range floodConcurrency {
		f.running.Go(func() {
			for i := range next {
				if err := readTagged(ctx, client, fmt.Sprintf("%s/v1/%s/flooded/flood-%d", api, s.Source, i)); err == nil {
					f.sent.Add(1)
				}
			}
		})
	}
	return f
}

func readTagged(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("If-None-Match", "*")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func (f *flood) stop() {
	f.cancel()
	f.running.Wait()
}
