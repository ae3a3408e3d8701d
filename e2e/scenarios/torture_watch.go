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

// seen is what the database holds of an entity at a moment.
type seen struct {
	version, checked, fetched, updated int64 // times in microseconds since 1970
	hash                               string
	absent                             bool
}

// witness looks at all that is stored, again and again, past the ways that are hurt.
type witness struct {
	s      *site
	conn   *pgx.Conn
	cancel context.CancelFunc
	ended  sync.WaitGroup
	last   map[string]seen
	looks  int
	wrong  []string
	passed int // went back within crossing
	err    error
}

// lookEvery is often, beside how long a fetch takes that is overtaken.
const lookEvery = 400 * time.Millisecond

func (s *site) witness(ctx context.Context) (*witness, error) {
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		return nil, err
	}
	w := &witness{s: s, conn: conn, last: map[string]seen{}}
	s.OnClose(func() { _ = conn.Close(context.Background()) })
	ctx, w.cancel = context.WithCancel(ctx)
	w.ended.Go(func() {
		for w.err == nil && harness.Pause(ctx, lookEvery) == nil {
			w.err = w.look(context.WithoutCancel(ctx))
		}
	})
	return w, nil
}

// stop looks for the last time.
func (w *witness) stop(ctx context.Context) error {
	w.cancel()
	w.ended.Wait()
	return errors.Join(w.err, w.look(ctx))
}

// crossing is by how much the time of a later fetch may lie before that of an earlier
// one: the time is taken before Redis is asked for the number, and two fetches of an
// entity, of one lane each, may wait for Redis at once.
const crossing = 2 * time.Second

// back says whether what was seen is older than what was seen before; crossed, that only
// a time went back, no further than it may.
func (now seen) back(before seen) (back, crossed bool) {
	if now.version < before.version || now.version == before.version && now != before {
		return true, false
	}
	by := max(before.checked-now.checked, before.fetched-now.fetched, before.updated-now.updated)
	return by > crossing.Microseconds(), by > 0
}

// look judges that nothing goes back. It waits for tables that are locked.
func (w *witness) look(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	rows, err := w.conn.Query(limit, `SELECT key, version, last_checked_at, last_fetched_at, last_updated_at, encode(hash, 'hex'), absent
		FROM snapshot_state WHERE source = $1 AND facet = $2`, w.s.Source, facet)
	if err != nil {
		return err
	}
	defer rows.Close()
	w.looks++
	for rows.Next() {
		var key string
		var now seen
		if err := rows.Scan(&key, &now.version, &now.checked, &now.fetched, &now.updated, &now.hash, &now.absent); err != nil {
			return err
		}
		before := w.last[key]
		back, crossed := now.back(before)
		if back {
			w.wrong = append(w.wrong, fmt.Sprintf("%s: %+v after %+v", key, now, before))
		} else if crossed {
			w.passed++
		}
		w.last[key] = now
	}
	return rows.Err()
}
