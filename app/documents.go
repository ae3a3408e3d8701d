package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Documents is the result of an export or an import of documents.
type Documents struct {
	// Written is the number of written documents. Unchanged is the number of documents whose target had
	// the same content.
	Written, Unchanged int
	// Skipped has the reason for each document that was not written, by key.
	Skipped map[string]error
}

// documentStore reads and writes documents.
type documentStore interface {
	StatesInRange(ctx context.Context, f store.KeyRange, after string, limit int) ([]store.State, error)
	GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error)
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
	auditStore
}

// documentBatch is the number of documents that are read or written together.
const documentBatch = 100

// ExportDocuments writes the stored documents of a raw facet as files below the directory dir, so
// that the facet's setting static.dir can name this directory. The path of a file is the key of its
// document. The modification time of the file is the time of the document's last check. So a query
// service treats the file and the stored document as equally new.
func ExportDocuments(ctx context.Context, p *Process, sourceName, facet, dir string) (Documents, error) {
	parts, src, closeAll, err := connectDocuments(ctx, p, sourceName, facet)
	if err != nil {
		return Documents{}, err
	}
	defer closeAll()
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // every user of this machine may read the documents, like static files of a web server
		return Documents{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Documents{}, err
	}
	defer func() { _ = root.Close() }()
	return exportDocuments(ctx, parts.store, src, facet, root)
}

// ImportDocuments stores the files below dir as documents of a raw facet, by the rules of static files. A
// stored document that was fetched after its file was modified is kept. The import is in the audit.
func ImportDocuments(ctx context.Context, p *Process, sourceName, facet, dir string) (Documents, error) {
	parts, src, closeAll, err := connectDocuments(ctx, p, sourceName, facet)
	if err != nil {
		return Documents{}, err
	}
	defer closeAll()
	return importDocuments(ctx, parts.store, src, facet, dir, func(ctx context.Context, settled schemas.Settled) error {
		return parts.rdb.Publish(ctx, schemas.SettledChannel(settled.Entity.Source), settled.Encode()).Err()
	})
}

// connectDocuments connects to the database and Redis, and returns the source of a raw facet.
func connectDocuments(ctx context.Context, p *Process, sourceName, facet string) (parts, *source.Source, func(), error) {
	config, err := p.Load(RequiredSources)
	if err != nil {
		return parts{}, nil, nil, err
	}
	built := parts{config: config, secret: noSecret}
	sources, err := built.sources(sourceName)
	if err != nil {
		return parts{}, nil, nil, err
	}
	src := sources[sourceName]
	f, known := src.Facet(facet)
	if !known || f.Raw == nil {
		return parts{}, nil, nil, UsageErrorf("%s/%s is not a facet with the setting raw; the source has the facets %s", sourceName, facet, strings.Join(src.FacetNames(), ", "))
	}
	connected, closeAll, err := p.connect(ctx, config, "snapshot")
	if err != nil {
		return parts{}, nil, nil, err
	}
	if err := connected.checkMigrations(ctx); err != nil {
		closeAll()
		return parts{}, nil, nil, err
	}
	return connected, src, closeAll, nil
}

func exportDocuments(ctx context.Context, db documentStore, src *source.Source, facet string, root *os.Root) (Documents, error) {
	out := Documents{Skipped: map[string]error{}}
	f, _ := src.Facet(facet)
	filter := store.KeyRange{Source: src.Name(), Facet: facet}
	for after := ""; ; {
		states, err := db.StatesInRange(ctx, filter, after, documentBatch)
		if err != nil || len(states) == 0 {
			return out, err
		}
		after = states[len(states)-1].Entity.Key
		var stored []schemas.Entity
		for _, s := range states {
			if s.HasContent() && !s.NotFound && s.MediaType == f.MediaType() {
				stored = append(stored, s.Entity)
			}
		}
		snapshots, err := db.GetAll(ctx, stored)
		if err != nil {
			return out, err
		}
		for _, s := range snapshots {
			written, err := exportDocument(src, facet, s, root)
			switch {
			case err != nil:
				out.Skipped[s.Entity.Key] = err
			case written:
				out.Written++
			default:
				out.Unchanged++
			}
		}
	}
}

// exportDocument writes one document with a rename, so that no process reads half of the file. It
// returns false if the file already has the content.
func exportDocument(src *source.Source, facet string, s store.Snapshot, root *os.Root) (written bool, err error) {
	key := s.Entity.Key
	switch {
	case s.Visibility != "":
		return false, fmt.Errorf("only clients with the scope see:%s may read this entity, but every client can read a static file", s.Visibility)
	case slices.ContainsFunc(strings.Split(key, "/"), func(part string) bool { return strings.HasPrefix(part, ".") }):
		return false, errors.New("a part of the key begins with a dot, and a file with such a name is not served")
	case !fs.ValidPath(key):
		return false, errors.New("the key is not a valid path of a file")
	}
	if err := src.CheckKey(facet, key); err != nil {
		return false, err
	}
	content, err := s.Decode(nil)
	if err != nil {
		return false, err
	}
	if before, err := root.ReadFile(key); err == nil && string(before) == string(content) {
		return false, nil
	}
	if dir := path.Dir(key); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return false, err
		}
	}
	const temporary = ".freshet-export"
	if err := root.WriteFile(temporary, content, 0o644); err != nil {
		return false, err
	}
	err = root.Chtimes(temporary, s.CheckedAt, s.CheckedAt)
	if err == nil {
		err = root.Rename(temporary, key)
	}
	if err != nil {
		return false, errors.Join(err, root.Remove(temporary))
	}
	return true, nil
}

func importDocuments(ctx context.Context, db documentStore, src *source.Source, facet, dir string, notify func(context.Context, schemas.Settled) error) (Documents, error) {
	out := Documents{}
	var writes []store.Write
	var err error
	if writes, out.Skipped, err = query.ReadDocuments(dir, src, facet); err != nil {
		return out, err
	}
	if len(writes) > 0 {
		// The entry is written before the first document, so that every import has one. Its number of documents
		// includes documents that the import then leaves unchanged.
		after := map[string]any{"facet": facet, "directory": dir, "documents": len(writes)}
		if err := writeAudit(ctx, db, "snapshot-import", src.Name(), after); err != nil {
			return out, err
		}
	}
	for batch := range slices.Chunk(writes, documentBatch) {
		kept, err := keepNewer(ctx, db, batch)
		if err != nil {
			return out, err
		}
		for e, why := range kept {
			out.Skipped[e.Key] = why
		}
		batch = slices.DeleteFunc(batch, func(w store.Write) bool { return kept[w.Entity] != nil })
		version := time.Now().UnixMilli() // the version of a fetch is normally Redis' time in milliseconds
		for i := range batch {
			batch[i].Version, batch[i].Visibility, batch[i].Manual = version, src.Visibility(batch[i].Entity.Key), true
		}
		results, err := db.Write(ctx, batch)
		if err != nil {
			return out, err
		}
		for i, r := range results {
			e := batch[i].Entity
			switch {
			case !r.Stored():
				out.Skipped[e.Key] = errors.New("the database already has the result of a later fetch")
				continue
			case r == store.Touched:
				out.Unchanged++
			default:
				out.Written++
			}
			if err := notify(ctx, schemas.Settled{Entity: e, Number: version}); err != nil {
				return out, fmt.Errorf("%s is stored, but the query services were not notified: %w; import again, or restart the query services", e, err)
			}
		}
	}
	return out, nil
}

// keepNewer returns the entities whose stored document was fetched after their file was modified.
func keepNewer(ctx context.Context, db documentStore, batch []store.Write) (map[schemas.Entity]error, error) {
	all := make([]schemas.Entity, len(batch))
	for i, w := range batch {
		all[i] = w.Entity
	}
	stored, err := db.GetAll(ctx, all)
	if err != nil {
		return nil, err
	}
	kept := map[schemas.Entity]error{}
	for i, s := range stored {
		if s.HasContent() && !s.NotFound && s.CheckedAt.After(batch[i].CheckedAt) && s.Hash != batch[i].Hash {
			kept[s.Entity] = fmt.Errorf("the stored document was fetched at %s, after the file was modified", s.CheckedAt.Format(time.RFC3339))
		}
	}
	return kept, nil
}
