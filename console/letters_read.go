package console

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/store"
)

const (
	jobsMost = 20
	// diedLife is for how long what died since yesterday is new enough for all who look.
	diedLife = 5 * time.Second
)

// deaths are the letters of a day of all sources, by what went wrong.
type deaths struct {
	groups []died
	more   bool // there are more than are told apart
}

// diedSince counts what died within a day, of these visibilities and of those of every
// reader; nil: of all. There may be a million of them: it is counted for all who look at once.
func (c *Console) diedSince(ctx context.Context, visibilities []string) (all deaths, err error) {
	since := c.Clock().Add(-day)
	for _, source := range c.Sources {
		groups, err := c.Letters.Groups(ctx, store.DeadLetterFilter{Source: source, Since: since, Visibilities: visibilities})
		if err != nil {
			return deaths{}, err
		}
		all.more = all.more || len(groups) == dlq.MaxGroups
		for _, g := range groups {
			all.groups = append(all.groups, died{source, g, reasonMeans(g.Reason)})
		}
	}
	slices.SortStableFunc(all.groups, func(a, b died) int { return int(min(1, max(-1, b.Count-a.Count))) })
	return all, nil
}

// atOnce does all at once, and returns the errors of those that failed.
func (c *Console) atOnce(ctx context.Context, all []func(context.Context, *Console) error) (failed []error) {
	errs := make([]error, len(all))
	var reads sync.WaitGroup
	for i, read := range all {
		errs[i] = errPanic
		reads.Go(func() { surviving(c.Log, func() { errs[i] = read(ctx, c) }) })
	}
	reads.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (p *lettersPage) readJobs(ctx context.Context, c *Console) error {
	all, err := c.Letters.Jobs(ctx)
	if err != nil {
		return err
	}
	now := c.Clock()
	for _, j := range all[:min(len(all), jobsMost)] {
		if c.seesJob(p.who, j) {
			p.Jobs = append(p.Jobs, showJob(j, now))
		}
	}
	p.JobsRead = true
	return nil
}

// readDied takes what was counted last, if it can't be counted now. A client that does not
// see every visibility gets the count of those of every reader.
func (p *lettersPage) readDied(ctx context.Context, c *Console) error {
	died := &c.diedPublic
	if p.who.Visibilities() == nil {
		died = &c.died
	}
	all, at, err := died.get(ctx, diedLife)
	if at.IsZero() {
		return err
	}
	p.DiedSays = diedSays(all.groups, at.Add(-day), at)
	if all.more {
		p.DiedSays = "At least " + p.DiedSays
	}
	p.Died = all.groups[:min(len(all.groups), groupsShown)]
	return nil
}

// readList reads the letters that the filter chooses.
func (p *lettersPage) readList(ctx context.Context, c *Console, behind store.DeadLetter) error {
	all, err := c.Letters.List(ctx, p.asked(p.who), behind, lettersShown)
	if err != nil {
		return err
	}
	p.Letters, p.Listed = slices.DeleteFunc(slices.Clone(all), func(l store.DeadLetter) bool { return !c.Known.Sees(p.who, l.Entity, l.Visibility) }), true
	if len(all) == lettersShown {
		last, q := all[lettersShown-1], p.Query()
		q.Set("after", dlq.FormatCursor(last))
		p.Next = root + "/letters?" + q.Encode()
	}
	return nil
}

// lettersOf returns how many letters there are, also where not all groups are told apart.
func lettersOf(groups []store.DeadLetterGroup) int64 {
	if len(groups) == 0 {
		return 0
	}
	return groups[0].Totals.All
}

// readGroups counts them, and judges whether they may be replayed.
func (p *lettersPage) readGroups(ctx context.Context, c *Console) error {
	f := p.asked(p.who)
	all, err := c.Letters.Groups(ctx, f)
	if err != nil {
		return err
	}
	open := all
	if f.Handled != store.OpenDeadLetters { // only what is open is ever replayed
		f.Handled = store.OpenDeadLetters
		if open, err = c.Letters.Groups(ctx, f); err != nil {
			return err
		}
	}
	p.Total = lettersOf(all)
	p.Safe = c.judge(ctx, f.Source, open, c.Clock())
	p.Groups, p.Counted = all[:min(len(all), groupsShown)], true
	if len(all) > len(p.Groups) {
		p.Others = fmt.Sprintf("These are the %d most frequent of %s kinds", groupsShown, exact(int64(len(all))))
		if len(all) == dlq.MaxGroups {
			p.Others += " or more"
		}
	}
	return nil
}
