package postgres

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// TestWhatAnOlderReleaseWritesWidensNothing writes as the release before the column did,
// beside this one.
func TestWhatAnOlderReleaseWritesWidensNothing(t *testing.T) {
	s := open(t)
	e := schemas.Entity{Source: "s", Facet: "f", Key: "k"}
	write := func(visibility string) {
		t.Helper()
		_, err := s.Write(t.Context(), []store.Write{{
			Entity: e, Version: 5, Visibility: visibility, CheckedAt: time.Unix(5, 0),
			Payload: func() (store.Payload, error) { return store.Encode([]byte("{}")), nil },
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	const older = `INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size,
	last_fetched_at, last_checked_at, last_updated_at, absent, etag, last_modified)
VALUES ('s', 'f', 'k', $1, 'y', 0, 'zstd', 2, 6, 6, 6, $2, '', '')
ON CONFLICT (source, facet, key) DO UPDATE SET version = excluded.version, hash = excluded.hash, absent = excluded.absent`
	write("partner")
	for version, absent := range map[int]bool{6: false, 7: true} {
		if _, err := s.pool.Exec(t.Context(), older, version, absent); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(t.Context(), e); err != nil || got.Visibility != "partner" || got.Version != int64(version) {
			t.Errorf("%+v, %v", got.State, err)
		}
	}
	if err := s.Delete(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), older, 8, false); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), e); err != nil || got.Visibility != "" {
		t.Errorf("what it knows to be public: %+v, %v", got.State, err)
	}
}
