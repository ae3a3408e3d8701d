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

// killed: one of two workers is killed half-way; nothing is lost.
func killed(ctx context.Context, s *site, _ options) error {
	if err := s.Prepare(ctx, onlySmall, "--latency", "30ms-1.7s"); err != nil {
		return err
	}
	return s.pipeline(ctx, "killed", 2000, true, nil)
}

// pipeline asks for so many keys, may kill one of two workers half-way, and judges
// that all are fresh and nothing is lost.
func (s *site) pipeline(ctx context.Context, name string, many int, kill bool, more func(*table) error) error {
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
	all := harness.Keys("key-", many)
	for i := 0; i < many; i += 100 {
		if err := readers[i/100%2].ReadMany(ctx, all[i:i+100]); err != nil {
			return err
		}
	}
	begun, called := 0, 0 // of all and of the victim, when it is killed
	if kill {
		if err := s.UntilStored(ctx, 3*harness.Timeout, "key-", many/2); err != nil {
			return err
		}
		victim.Kill()
		st, err := s.Stats(ctx)
		if err != nil {
			return err
		}
		begun, called = st.Arrivals, int(victim.answered.Load())
	}
	lost := s.UntilStored(ctx, 3*harness.Timeout, "key-", many)
	committed := s.UntilCommitted(ctx, 2*harness.Timeout)
	fresh := 0
	var wrong error
	const hands = 20 // how many at once is not judged here
	for i := 0; i < many; i += hands {
		n, err := concurrently(hands, func(n int) (bool, error) {
			a, err := readers[n%2].Read(ctx, all[i+n], "")
			if err == nil && a.Freshness == "FRESH" {
				err = x.check(ctx, a, all[i+n])
			}
			return a.Freshness == "FRESH", err
		})
		fresh += n
		if wrong == nil {
			wrong = err
		}
	}
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	t := &table{}
	t.judgeEqual("snapshots that are fresh, each with its key's document", fresh, many)
	t.judge("all are stored, committed and read", errorOrYes(lost, committed, wrong), "yes", lost == nil && committed == nil && wrong == nil)
	again := st.Arrivals - many
	if kill {
		// What is stored is not fetched again, whoever fetched it. Half were, at the least.
		most := begun - many/2
		t.judge("calls of the victim that were answered", strconv.Itoa(called), fmt.Sprintf(">=%d", many/20), called >= many/20)
		t.judge("calls made twice, of those that were not stored at the kill", fmt.Sprintf("%d of %d", again, most), "some, no more",
			again > 0 && again <= most)
	} else {
		t.judgeEqual("calls made twice", again, 0)
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

// victim is a worker whose calls are counted on their way to the upstream.
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
	way, err := harness.NewProxy(ctx, u.Host, func(piece []byte) {
		v.answered.Add(int64(bytes.Count(piece, []byte("HTTP/1.1 200"))))
	})
	if err != nil {
		return nil, err
	}
	s.OnClose(way.Close)
	direct := s.Upstream
	s.Upstream = "http://" + way.Address()
	v.Process, err = s.Worker(ctx, "worker-2")
	s.Upstream = direct
	return v, err
}

// errorOrYes is the first of these errors, or yes.
func errorOrYes(errs ...error) string {
	for _, err := range errs {
		if err != nil {
			return err.Error()
		}
	}
	return "yes"
}
