package query

import (
	"context"
	"errors"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/singleflight"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// readBody is a read's answer but for the snapshot, which is spliced in as it is
// stored.
type readBody struct {
	Freshness     Freshness  `json:"freshness"`
	LastUpdatedAt *time.Time `json:"lastUpdatedAt"`
	LastCheckedAt *time.Time `json:"lastCheckedAt"`
	UpdateQueued  bool       `json:"updateQueued"`
	queued
	// Why a refresh that is due is not queued, and when asking again may help.
	NotQueuedReason *string    `json:"notQueuedReason"`
	NotQueuedUntil  *time.Time `json:"notQueuedUntil"`
}

// queued is how long a queued refresh will wait, and when that was measured.
type queued struct {
	EstimatedWaitMs *int64     `json:"estimatedWaitMs"`
	EstimatedAt     *time.Time `json:"estimatedAt"`
}

func whenSet(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// wait returns what is known of how long a request will wait.
func (s *Server) wait(source string) queued {
	wait, measured, known := s.waits.Wait(source, schemas.High)
	if !known {
		return queued{}
	}
	ms := wait.Milliseconds()
	return queued{&ms, whenSet(measured.UTC().Truncate(time.Millisecond))}
}

// tell writes into the answer what became of the wish.
func (b *readBody) tell(a Answer, wait func() queued) {
	b.UpdateQueued = a.Queued
	switch {
	case a.Queued:
		b.queued = wait()
		return
	case a.Pending:
		a.Reason = reasonPending
	}
	b.NotQueuedReason, b.NotQueuedUntil = &a.Reason, whenSet(a.Until)
}

// coming reports whether a refresh is on its way, as far as is known.
func (a Answer) coming() bool { return a.Queued || a.Pending || a.Reason == reasonSlow }

// ask queues a refresh that a read wants, for as long as a read can wait for that.
// What takes longer goes on behind the reader's back, and is only not promised. All
// requests of one client for the entity at this moment are one.
func (s *Server) ask(c echo.Context, who access.Client, w Wish) Answer {
	begun, err := s.meters.Begin(who.Name, w.Entity.String())
	if err != nil {
		return refusal(err)
	}
	w = s.traced(c, w.of(who))
	ctx := context.WithoutCancel(c.Request().Context())
	answered := s.asks.DoChan(w.flight(), surviving(func() (any, error) { return s.request(ctx, []Wish{w})[0], nil }))
	account := func(a Answer) {
		if begun && !a.coming() {
			s.meters.Abandon(who.Name, w.Entity.String())
		}
	}
	limit := time.NewTimer(readPatience)
	defer limit.Stop()
	select {
	case r := <-answered:
		a := s.answered(r)
		account(a)
		return a
	case <-limit.C:
		go func() { account(s.answered(<-answered)) }()
		return Answer{Reason: reasonSlow}
	}
}

// refusal is the answer to a wish that its client may not make now.
func refusal(err error) Answer {
	a := Answer{Reason: ReasonTooMany, refused: err}
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		a.Until = time.Now().Add(p.After)
	}
	return a
}

// answered returns what was answered to all who asked as one.
func (s *Server) answered(r singleflight.Result) Answer {
	if a, ok := r.Val.(Answer); ok {
		return a
	}
	s.log.Error("asking for a refresh failed", "err", r.Err)
	return Answer{Reason: ReasonDown}
}

// request asks for all, if there is room: what a dead Redis or Kafka keeps from
// ending must not pile up without bound.
func (s *Server) request(ctx context.Context, wishes []Wish) []Answer {
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
		return s.refuse(s.requests.Request(ctx, wishes))
	default:
		return all(wishes, ReasonBusy)
	}
}

// all returns the same answer to all wishes.
func all(wishes []Wish, reason string) []Answer {
	answers := make([]Answer, len(wishes))
	for i := range answers {
		answers[i].Reason = reason
	}
	return answers
}
