package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// isolation causes a large lag of the HIGH lane. It judges that LOW pauses until HIGH has nearly
// caught up, and that the consumer groups of the two lanes have no member in common.
func isolation(ctx context.Context, s *site, _ options) error {
	const (
		burst = 10_000
		seen  = 12 * time.Second // maximum time from the HIGH requests until LOW pauses, and from the last HIGH snapshot until LOW resumes
	)
	l, err := s.startLanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	if err := l.untilLowFlows(ctx, 20_000); err != nil {
		return err
	}
	members, err := s.groupMembers(ctx)
	if err != nil {
		return err
	}
	all := harness.Keys("high-burst-", burst)
	began := time.Now()
	for i := 0; i < burst; i += 100 {
		if err := l.reader.ReadMany(ctx, all[i:i+100]); err != nil {
			return err
		}
	}
	asked := time.Now()
	if err := s.UntilStored(ctx, 4*harness.Timeout, "high-burst-", burst); err != nil {
		return err
	}
	end := time.Now()
	if err := harness.Pause(ctx, seen+warmUp); err != nil {
		return err
	}
	t := &table{}
	t.judge("members of the HIGH group, the LOW group, both", fmt.Sprintf("%d, %d, %d", members[0], members[1], members[2]), ">=1, >=1, 0",
		members[0] > 0 && members[1] > 0 && members[2] == 0)
	arrivals, err := l.judgeEnd(ctx, t)
	if err != nil {
		return err
	}
	from, to := longestGap(arrivals, "low-", asked, end.Add(seen))
	t.judgeBelow("time until LOW pauses", from.Sub(asked), seen)
	// LOW resumes when the lag of HIGH is below 1,000 records. The workers need about 5 s to store
	// the snapshots of 1,000 records.
	const rest = 5 * time.Second
	t.judge("  length of the pause", formatDuration(to.Sub(from)), ">="+formatDuration(end.Sub(from)-rest)+", until HIGH has nearly caught up", to.Sub(end) >= -rest)
	t.judgeRate("HIGH calls in the pause", arrivals, "high-", from, from.Add(min(to.Sub(from), end.Sub(from))*9/10), minShare*totalRate, 1.01*totalRate)
	t.report(fmt.Sprintf("time until all %d of HIGH are requested, stored", burst), "%s, %s", formatDuration(asked.Sub(began)), formatDuration(end.Sub(began)))
	t.judgeRate("LOW calls afterwards", arrivals, "low-", end.Add(seen), end.Add(seen+warmUp), 0.8*lowRate, 1.02*lowRate)
	s.addResult("isolation", t)
	return nil
}

// longestGap returns the longest interval in [from, to] without a call for keys with a prefix.
func longestGap(all []harness.Arrival, prefix string, from, to time.Time) (begins, ends time.Time) {
	last := from
	for _, a := range append(all, harness.Arrival{At: to, Key: prefix}) {
		if !strings.HasPrefix(a.Key, prefix) || a.At.Before(from) || a.At.After(to) {
			continue
		}
		if a.At.Sub(last) > ends.Sub(begins) {
			begins, ends = last, a.At
		}
		last = a.At
	}
	return begins, ends
}

// groupMembers returns three numbers: the members of the HIGH group, the members of the LOW
// group, and the members that are in both groups.
func (s *site) groupMembers(ctx context.Context) (n [3]int, err error) {
	client, err := s.ConnectKafka()
	if err != nil {
		return n, err
	}
	defer client.Close()
	high, low := schemas.Group(s.Source, schemas.High), schemas.Group(s.Source, schemas.Low)
	groups, err := kadm.NewClient(client).DescribeGroups(ctx, high, low)
	if err != nil {
		return n, err
	}
	seen := map[string]bool{}
	for i, name := range []string{high, low} {
		for _, m := range groups[name].Members {
			n[i]++
			if seen[m.MemberID] {
				n[2]++
			}
			seen[m.MemberID] = true
		}
	}
	return n, nil
}
