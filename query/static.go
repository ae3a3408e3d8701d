package query

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// staticFiles are the files that are served as content, by entity. Its methods may be called
// concurrently with a scan of the directories (static_scan.go). A nil staticFiles has no files.
//
// Invariants:
//   - A read of a file reads the store only if a settle message of its entity arrived after the last read
//     of the store. So no read returns a file after a newer stored snapshot was settled.
//   - A stored snapshot is served in place of the file if a client or an operator requested its refresh
//     after the file was modified.
//   - A file replaces the file of the same key only if its content is valid.
type staticFiles struct {
	files atomic.Pointer[map[schemas.Entity]*staticFile]
	// unchecked: settle messages may have been lost, or a file is new. The next call of check reads the
	// stored states of all files.
	unchecked atomic.Bool
	scanner   *staticScanner
}

// staticFile is one file of a facet's static directory, with its response body.
type staticFile struct {
	*entry
	info os.FileInfo
	// settled counts the settle messages of the entity. `checked` is the value of settled before the
	// last read of the store that found no newer snapshot. If both are equal, the file is served
	// without a read of the store.
	settled, checked atomic.Int64
}

func newStaticFile(e schemas.Entity, f source.Facet, info os.FileInfo, content []byte) *staticFile {
	p := store.Encode(content)
	modified := info.ModTime()
	s := store.Snapshot{State: store.State{
		Entity: e, Hash: sha256.Sum256(content), ExtractVersion: f.ExtractVersion(), Encoding: p.Encoding, Size: p.Size, MediaType: f.MediaType(),
		FetchedAt: modified, CheckedAt: modified, UpdatedAt: modified,
	}, Payload: p.Bytes}
	return &staticFile{entry: newEntry(s, f, 1, nil, func(*entry) {}), info: info}
}

// get returns the file of an entity, or nil.
func (s *staticFiles) get(e schemas.Entity, f source.Facet) *staticFile {
	if f.Static == nil || s == nil {
		return nil
	}
	return (*s.files.Load())[e]
}

// settle records a settle message.
func (s *staticFiles) settle(e schemas.Entity) {
	if s == nil {
		return
	}
	if file := (*s.files.Load())[e]; file != nil {
		file.settled.Add(1)
	}
}

// isServedBefore reports whether the file is served in place of a stored snapshot with this state.
func (f *staticFile) isServedBefore(stored store.State) bool {
	return !stored.Manual || stored.NotFound || !stored.HasContent() || stored.MediaType != f.MediaType || !stored.CheckedAt.After(f.info.ModTime())
}

// maxCheckBatch is the maximum number of files whose stored states one statement reads.
const maxCheckBatch = 100

// check compares all files that are served first with the stored snapshots, if a settle message may
// have been lost or a file is new. The next read of a file with a newer snapshot reads the store.
func (s *staticFiles) check(ctx context.Context, from Store) error {
	if !s.unchecked.Swap(false) {
		return nil
	}
	var all []schemas.Entity
	files := *s.files.Load()
	for e, file := range files {
		if file.facet.Static.First() {
			all = append(all, e)
		}
	}
	for batch := range slices.Chunk(all, maxCheckBatch) {
		limited, cancel := context.WithTimeout(ctx, storeTimeout)
		snapshots, err := from.GetAll(limited, batch)
		cancel()
		if err != nil {
			s.unchecked.Store(true)
			return fmt.Errorf("read the stored snapshots of static files: %w", err)
		}
		for _, stored := range snapshots {
			if file := files[stored.Entity]; !file.isServedBefore(stored.State) {
				file.settled.Add(1)
			}
		}
	}
	return nil
}

// orFile returns the result of `read`, which reads the cache or the store, or the file. It calls `read`
// only if a stored snapshot may be newer than the file. If the store can't be read, it returns the
// file with the error.
func (f *staticFile) orFile(read func() (*entry, bool, error)) (found *entry, fallback bool, err error) {
	settled := f.settled.Load()
	if settled == f.checked.Load() {
		return f.entry, false, nil
	}
	found, fallback, err = read()
	switch {
	case err != nil:
		return f.entry, false, err
	case found == nil || f.isServedBefore(found.State):
		if !fallback {
			f.checked.Store(settled)
		}
		return f.entry, false, nil
	}
	return found, fallback, nil
}

// viewOfStatic returns the view of a file. `err` is the error of the store if the store can't be read,
// or the problem of a client that reads too many missing keys.
func viewOfStatic(file *staticFile, err error, f source.Facet) view {
	v := view{entry: file.entry, static: true, freshness: store.Stale, at: time.Now()}
	if f.Immutable {
		v.freshness = store.Fresh
	}
	if _, refused := errors.AsType[*problem.HTTPError](err); refused {
		v.degraded = ReasonTooMany
	} else if err != nil {
		v.degraded = reasonStore
	}
	return v
}

// orStatic returns the view of the entity's file if v has no content to be served, else v.
func (rd *reader) orStatic(v view, e schemas.Entity, f source.Facet) view {
	file := rd.cache.static.get(e, f)
	if file == nil || v.freshness != store.Updating || v.result.Reason == HeldReason(schemas.HoldNotFound) {
		return v
	}
	rd.fromStatic.Inc()
	served := viewOfStatic(file, nil, f)
	served.reason, served.result = v.reason, v.result
	blocked, _ := rd.requester.estimator.Blocked(e.Source)
	switch {
	case v.result.Reason != "" && v.result.Reason != reasonSlow:
		served.degraded = v.result.Reason
	case blocked != "":
		served.degraded = blocked
	case v.waited:
		served.degraded = reasonWait
	default:
		served.degraded = reasonUpdating
	}
	return served
}
