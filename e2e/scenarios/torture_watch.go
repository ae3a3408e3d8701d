package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/e2e/harness"
)

// storedState is what the database holds of an entity at a moment.
type storedState struct {
	version, checked, fetched, updated int64 // times in microseconds since 1970
	hash                               string
	absent                             bool
}

// stateWatcher looks at all that is stored, again and again, past the ways that are hurt.
type stateWatcher struct {
	s               *site
	conn            *pgx.Conn
	cancel          context.CancelFunc
	ended           sync.WaitGroup
	last            map[string]storedState
	checks          int
	regressions     []string
	timeRegressions int // went back within crossing
	err             error
}

// checkInterval is often, beside how long a fetch takes that is overtaken.
const checkInterval = 400 * time.Millisecond

func (s *site) watchState(ctx context.Context) (*stateWatcher, error) {
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		return nil, err
	}
	w := &stateWatcher{s: s, conn: conn, last: map[string]storedState{}}
	s.OnClose(func() { _ = conn.Close(context.Background()) })
	ctx, w.cancel = context.WithCancel(ctx)
	w.ended.Go(func() {
		for w.err == nil && harness.Pause(ctx, checkInterval) == nil {
			w.err = w.check(context.WithoutCancel(ctx))
		}
	})
	return w, nil
}

// stop looks for the last time.
func (w *stateWatcher) stop(ctx context.Context) error {
	w.cancel()
	w.ended.Wait()
	return errors.Join(w.err, w.check(ctx))
}

// maxTimeRegression is by how much the time of a later fetch may lie before that of an earlier
// one: the time is taken before Redis is asked for the number, and two fetches of an
// entity, of one lane each, may wait for Redis at once.
const maxTimeRegression = 2 * time.Second

// regressed says whether what was seen is older than what was seen before; crossed, that only
// a time went back, no further than it may.
func (now storedState) regressed(before storedState) (back, crossed bool) {
	if now.version < before.version || now.version == before.version && now != before {
		return true, false
	}
	by := max(before.checked-now.checked, before.fetched-now.fetched, before.updated-now.updated)
	return by > maxTimeRegression.Microseconds(), by > 0
}

// check judges that nothing goes back. It waits for tables that are locked.
func (w *stateWatcher) check(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	rows, err := w.conn.Query(limit, `SELECT key, version, last_checked_at, last_fetched_at, last_updated_at, encode(hash, 'hex'), absent
		FROM snapshot_state WHERE source = $1 AND facet = $2`, w.s.Source, facet)
	if err != nil {
		return err
	}
	defer rows.Close()
	w.checks++
	for rows.Next() {
		var key string
		var now storedState
		if err := rows.Scan(&key, &now.version, &now.checked, &now.fetched, &now.updated, &now.hash, &now.absent); err != nil {
			return err
		}
		before := w.last[key]
		back, crossed := now.regressed(before)
		if back {
			w.regressions = append(w.regressions, fmt.Sprintf("%s: %+v after %+v", key, now, before))
		} else if crossed {
			w.timeRegressions++
		}
		w.last[key] = now
	}
	return rows.Err()
}
