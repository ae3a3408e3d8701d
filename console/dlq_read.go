package console

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/deadletters"
)

const (
	maxJobsShown = 20
	// recentTTL is how long the count of the dead letters of the last 24 h is cached.
	recentTTL = 5 * time.Second
)

// deadLetterGroups contains the dead letters of the last 24 h of all sources, grouped by cause.
type deadLetterGroups struct {
	groups []deadLetterGroup
	more   bool // true if the list `groups` may be incomplete, because at most dlq.MaxGroups groups are read for each source
}

// readRecentDeadLetters counts the dead letters of the last 24 h. It counts dead letters with one
// of the visibility labels in `visibilities`, and all dead letters without a label. If
// `visibilities` is nil, it counts all dead letters. A count is expensive, because there may be a
// million dead letters. All clients therefore share its result.
func (c *dlqPages) readRecentDeadLetters(ctx context.Context, visibilities []string) (all deadLetterGroups, err error) {
	since := c.Clock().Add(-day)
	for _, source := range c.Sources {
		groups, err := c.DLQ.Groups(ctx, deadletters.Filter{Source: source, Since: since, Visibilities: visibilities})
		if err != nil {
			return deadLetterGroups{}, err
		}
		all.more = all.more || len(groups) == dlq.MaxGroups
		for _, g := range groups {
			all.groups = append(all.groups, deadLetterGroup{source, g, explainReason(g.Reason)})
		}
	}
	slices.SortStableFunc(all.groups, func(a, b deadLetterGroup) int { return int(min(1, max(-1, b.Count-a.Count))) })
	return all, nil
}

// parallel runs several reads at the same time, and returns the errors of the reads that failed.
func (c *dlqPages) parallel(ctx context.Context, all []func(context.Context, *dlqPages) error) (failed []error) {
	errs := make([]error, len(all))
	var reads sync.WaitGroup
	for i, read := range all {
		errs[i] = status.ErrPanic
		reads.Go(func() { status.CatchPanic(c.Log, func() { errs[i] = read(ctx, c) }) })
	}
	reads.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (p *dlqPage) readJobs(ctx context.Context, c *dlqPages) error {
	all, err := c.DLQ.Jobs(ctx)
	if err != nil {
		return err
	}
	now := c.Clock()
	for _, j := range all[:min(len(all), maxJobsShown)] {
		if c.canSeeJob(p.client, j) {
			p.Jobs = append(p.Jobs, newJobPage(j, now))
		}
	}
	p.JobsRead = true
	return nil
}

// readRecent reads the cached count of the dead letters of the last 24 h. If a new count fails, it
// uses the previous count. Only a client that may see content with every visibility label gets the
// count of all dead letters. Other clients get the count of the dead letters without a label.
func (p *dlqPage) readRecent(ctx context.Context, c *dlqPages) error {
	groups := &c.publicRecent
	if p.client.Visibilities() == nil {
		groups = &c.recent
	}
	all, at, err := groups.Get(ctx, recentTTL)
	if at.IsZero() {
		return err
	}
	p.RecentMessage = deadLettersMessage(all.groups, at.Add(-day), at)
	if all.more {
		p.RecentMessage = "At least " + p.RecentMessage
	}
	p.Recent = all.groups[:min(len(all.groups), maxGroupsShown)]
	return nil
}

// readList reads one page of the dead letters that match the filter, and sets p.Next to the URL of
// the next page.
func (p *dlqPage) readList(ctx context.Context, c *dlqPages, after deadletters.DeadLetter) error {
	all, err := c.DLQ.List(ctx, p.storeFilter(p.client), after, dlqPageSize)
	if err != nil {
		return err
	}
	p.DeadLetters, p.Listed = slices.DeleteFunc(slices.Clone(all), func(l deadletters.DeadLetter) bool { return !c.Entities.Sees(p.client, l.Entity, l.Visibility) }), true
	if len(all) == dlqPageSize {
		last, q := all[dlqPageSize-1], p.Query()
		q.Set("after", dlq.FormatCursor(last))
		p.Next = root + "/dlq?" + q.Encode()
	}
	return nil
}

// totalOf returns the number of all dead letters that match the filter. The first group contains
// that number. It includes dead letters whose groups are missing in "groups", because that list has
// at most dlq.MaxGroups groups.
func totalOf(groups []deadletters.Group) int64 {
	if len(groups) == 0 {
		return 0
	}
	return groups[0].Totals.All
}

// readGroups counts the dead letters that match the filter, grouped by cause.
func (p *dlqPage) readGroups(ctx context.Context, c *dlqPages) error {
	f := p.storeFilter(p.client)
	all, err := c.DLQ.Groups(ctx, f)
	if err != nil {
		return err
	}
	open := all
	if f.Handled != deadletters.Open { // a replay affects only open dead letters
		f.Handled = deadletters.Open
		if open, err = c.DLQ.Groups(ctx, f); err != nil {
			return err
		}
	}
	p.Total = totalOf(all)
	if len(open) > 0 {
		p.Open = open[0].Totals.All - open[0].Totals.AtReplayLimit
	}
	p.Groups, p.Counted = all[:min(len(all), maxGroupsShown)], true
	if len(all) > len(p.Groups) {
		p.MoreGroups = fmt.Sprintf("The %d most frequent of %s groups", maxGroupsShown, status.FormatInt(int64(len(all))))
		if len(all) == dlq.MaxGroups {
			p.MoreGroups += " or more"
		}
	}
	return nil
}
