package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// inFlight is what one worker's HIGH lane may have under way, and so repeat.
const inFlight = 512

// killed: one of two workers is killed half-way; nothing is lost.
func killed(ctx context.Context, s *site, _ options) error {
	if err := s.prepare(ctx, onlySmall, "--latency", "30ms-1.7s"); err != nil {
		return err
	}
	return s.pipeline(ctx, "killed", 2000, true, nil)
}

// pipeline asks for so many keys, may kill one of two workers half-way, and judges
// that all are fresh and nothing is lost.
func (s *site) pipeline(ctx context.Context, name string, many int, kill bool, more func(*table) error) error {
	if _, err := s.worker(ctx, "worker-1"); err != nil {
		return err
	}
	victim, err := s.worker(ctx, "worker-2")
	if err != nil {
		return err
	}
	readers, err := s.readers(ctx, 2, "")
	if err != nil {
		return err
	}
	all := keys("key-", many)
	for i := 0; i < many; i += 100 {
		if err := readers[i/100%2].many(ctx, all[i:i+100]); err != nil {
			return err
		}
	}
	if kill {
		if err := s.untilStored(ctx, 3*patience, "key-", many/2); err != nil {
			return err
		}
		victim.kill()
	}
	lost := s.untilStored(ctx, 3*patience, "key-", many)
	committed := s.untilCommitted(ctx, 2*patience)
	fresh := 0
	var wrong error
	const hands = 20 // how many at once is not judged here
	for i := 0; i < many; i += hands {
		n, err := atOnce(hands, func(n int) (bool, error) {
			a, err := readers[n%2].read(ctx, all[i+n], "")
			return a.Freshness == "FRESH", err
		})
		fresh += n
		wrong = errors.Join(wrong, err)
	}
	st, err := s.stats(ctx)
	if err != nil {
		return err
	}
	t := &table{}
	t.count("snapshots that are fresh", fresh, many)
	t.judge("offsets are all committed", said(lost, committed, wrong), "yes", lost == nil && committed == nil && wrong == nil)
	again, most := st.Arrivals-many, 0
	if kill {
		most = inFlight
	}
	t.judge("calls made twice", strconv.Itoa(again), fmt.Sprintf("<=%d", most), again >= 0 && again <= most)
	t.judgeContract(st)
	if err := s.judgeLoss(ctx, t); err != nil {
		return err
	}
	if more != nil {
		if err := more(t); err != nil {
			return err
		}
	}
	s.judged(name, t)
	return nil
}

// said is the first of these errors, or yes.
func said(errs ...error) string {
	for _, err := range errs {
		if err != nil {
			return err.Error()
		}
	}
	return "yes"
}
