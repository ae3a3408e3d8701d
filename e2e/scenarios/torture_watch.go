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

// storedState is the row of an entity in the table snapshot_state, as one check of the watcher has
// read it.
type storedState struct {
	version, checked, fetched, updated int64 // version is a version number; checked, fetched and updated are times in microseconds since 1970
	hash                               string
	notFound                           bool
}

// stateWatcher reads all stored entities periodically, on a database connection without a proxy. It
// records every entity whose version or times became older.
type stateWatcher struct {
	s               *site
	conn            *pgx.Conn
	cancel          context.CancelFunc
	ended           sync.WaitGroup
	last            map[string]storedState
	checks          int
	regressions     []string
	timeRegressions int // how often a check, fetch or update time went back by at most maxTimeRegression
	err             error
}

// checkInterval is the interval of the checks. If the result of an older fetch wrongly replaces
// the result of a newer fetch, a check must see the newer result first. The interval is therefore
// shorter than the time between two such fetches.
const checkInterval = 400 * time.Millisecond

// watchState starts a stateWatcher. Its method stop ends it.
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

// stop ends the watcher after one last check.
func (w *stateWatcher) stop(ctx context.Context) error {
	w.cancel()
	w.ended.Wait()
	return errors.Join(w.err, w.check(ctx))
}

// maxTimeRegression is how far the times of a fetch may precede the times of another fetch with a
// lower version. A worker reads its clock before it requests the version from Redis. If two fetches
// of an entity, one in each lane, wait for Redis at the same time, the fetch with the earlier clock
// reading may get the higher version.
const maxTimeRegression = 2 * time.Second

// regressed compares an entity's state with its state in the previous check. older reports that
// the entity's state became older, which is an error. crossed reports that a time of the entity went
// back although its version is newer, which is allowed up to maxTimeRegression.
func (now storedState) regressed(before storedState) (older, crossed bool) {
	if now.version < before.version || now.version == before.version && now != before {
		return true, false
	}
	by := max(before.checked-now.checked, before.fetched-now.fetched, before.updated-now.updated)
	return by > maxTimeRegression.Microseconds(), by > 0
}

// check reads all entities and compares them with the previous check. If the tables are locked,
// it waits for the lock.
func (w *stateWatcher) check(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	rows, err := w.conn.Query(limit, `SELECT key, version, last_checked_at, last_fetched_at, last_updated_at, encode(hash, 'hex'), not_found
		FROM snapshot_state WHERE source = $1 AND facet = $2`, w.s.Source, facet)
	if err != nil {
		return err
	}
	defer rows.Close()
	w.checks++
	for rows.Next() {
		var key string
		var now storedState
		if err := rows.Scan(&key, &now.version, &now.checked, &now.fetched, &now.updated, &now.hash, &now.notFound); err != nil {
			return err
		}
		before := w.last[key]
		older, crossed := now.regressed(before)
		if older {
			w.regressions = append(w.regressions, fmt.Sprintf("%s: %+v after %+v", key, now, before))
		} else if crossed {
			w.timeRegressions++
		}
		w.last[key] = now
	}
	return rows.Err()
}
