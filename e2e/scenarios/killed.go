package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"

	"github.com/freshet/freshet/e2e/harness"
)

// killed kills one of two workers and judges that no request is lost.
func killed(ctx context.Context, s *site, _ options) error {
	if err := s.Prepare(ctx, onlySmall, "--latency", "30ms-1.7s"); err != nil {
		return err
	}
	return s.pipeline(ctx, "killed", 2000, true, nil)
}

// pipeline requests n keys and judges that all keys become fresh and that no request is lost. If
// `kill` is true, it kills one of two workers when half of the snapshots are stored. The function
// `more` adds further lines to the table; it may be nil.
func (s *site) pipeline(ctx context.Context, name string, n int, kill bool, more func(*table) error) error {
	if _, err := s.Worker(ctx, "worker-1"); err != nil {
		return err
	}
	victim, err := s.victim(ctx)
	if err != nil {
		return err
	}
	x, err := s.expect()
	if err != nil {
		return err
	}
	readers, err := s.Readers(ctx, 2, small, "")
	if err != nil {
		return err
	}
	all := harness.Keys("key-", n)
	for i := 0; i < n; i += 100 {
		if err := readers[i/100%2].ReadMany(ctx, all[i:i+100]); err != nil {
			return err
		}
	}
	atKill, called := 0, 0 // number of upstream calls before the kill: of both workers, and of the killed worker
	if kill {
		if err := s.UntilStored(ctx, 3*harness.Timeout, "key-", n/2); err != nil {
			return err
		}
		victim.Kill()
		st, err := s.Stats(ctx)
		if err != nil {
			return err
		}
		atKill, called = st.Arrivals, int(victim.answered.Load())
	}
	lost := s.UntilStored(ctx, 3*harness.Timeout, "key-", n)
	committed := s.UntilCommitted(ctx, 2*harness.Timeout)
	fresh := 0
	var wrong error
	const batch = 20
	for i := 0; i < n; i += batch {
		count, err := concurrently(batch, func(k int) (bool, error) {
			a, err := readers[k%2].Read(ctx, all[i+k], "")
			if err == nil && a.Freshness == "FRESH" {
				err = x.check(ctx, a, all[i+k])
			}
			return a.Freshness == "FRESH", err
		})
		fresh += count
		if wrong == nil {
			wrong = err
		}
	}
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	t := &table{}
	t.judgeEqual("FRESH reads with the document of their key", fresh, n)
	t.judge("all stored, committed and read", errorOrYes(lost, committed, wrong), "yes", lost == nil && committed == nil && wrong == nil)
	repeated := st.Arrivals - n
	if kill {
		// Only calls whose results were not stored before the kill may be repeated. atKill calls
		// were made before the kill, and at least n/2 of their results were stored.
		allowed := atKill - n/2
		t.judge("completed calls of the killed worker", strconv.Itoa(called), fmt.Sprintf(">=%d", n/20), called >= n/20)
		t.judge("repeated calls, of the calls not stored at the kill", fmt.Sprintf("%d of %d", repeated, allowed), "some, not more",
			repeated > 0 && repeated <= allowed)
	} else {
		t.judgeEqual("repeated calls", repeated, 0)
	}
	t.judgeContract(st)
	if err := s.judgeLoss(ctx, t); err != nil {
		return err
	}
	if more != nil {
		if err := more(t); err != nil {
			return err
		}
	}
	s.addResult(name, t)
	return nil
}

// victim is the worker that will be killed. It calls the upstream through a proxy that counts the
// responses, so that its calls can be distinguished from the calls of the other worker.
type victim struct {
	*harness.Process
	answered atomic.Int64
}

func (s *site) victim(ctx context.Context) (*victim, error) {
	u, err := url.Parse(s.Upstream)
	if err != nil {
		return nil, err
	}
	v := &victim{}
	proxy, err := harness.NewProxy(ctx, u.Host, func(piece []byte) {
		v.answered.Add(int64(bytes.Count(piece, []byte("HTTP/1.1 200"))))
	})
	if err != nil {
		return nil, err
	}
	s.OnClose(proxy.Close)
	direct := s.Upstream
	s.Upstream = "http://" + proxy.Address()
	v.Process, err = s.Worker(ctx, "worker-2")
	s.Upstream = direct
	return v, err
}

// errorOrYes returns the text of the first error, or "yes" if all are nil.
func errorOrYes(errs ...error) string {
	for _, err := range errs {
		if err != nil {
			return err.Error()
		}
	}
	return "yes"
}
