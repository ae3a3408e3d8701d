package app

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

// documentSource returns a source with a raw facet whose keys may have any characters that {+key} allows.
func documentSource(t *testing.T) *source.Source {
	t.Helper()
	config := source.DefaultConfig()
	config.BaseURL = "http://upstream.example"
	f := source.DefaultFacet()
	f.KeyPattern, f.Immutable = `[a-zA-Z0-9./:_-]+`, true
	f.Raw = &source.Raw{MediaType: "application/xml", WellFormed: "xml"}
	f.Documents = map[string]source.Document{"layout": {Path: "/ui/{+key}"}}
	config.Facets = map[string]source.Facet{"layout": f}
	src, err := source.New("court", config, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src
}

func documentDatabase(t *testing.T) *sqlite.Store {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// putDocument stores a document as a worker does.
func putDocument(t *testing.T, db *sqlite.Store, key, text, mediaType, visibility string, at time.Time) {
	t.Helper()
	p := store.Encode([]byte(text))
	p.MediaType = mediaType
	_, err := db.Write(t.Context(), []store.Write{{
		Entity: schemas.Entity{Source: "court", Facet: "layout", Key: key}, Version: at.UnixMilli(), CheckedAt: at, Visibility: visibility,
		Hash: store.Hash([]byte(text + strings.Repeat(" ", 32))[:32]), ExtractVersion: 1, Payload: func() (store.Payload, error) { return p, nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func exportTo(t *testing.T, db *sqlite.Store, src *source.Source, dir string) Documents {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	out, err := exportDocuments(t.Context(), db, src, "layout", root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDocuments_ExportWritesFiles(t *testing.T) {
	src, db := documentSource(t), documentDatabase(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	for i := range documentBatch + 5 { // more documents than one batch has
		putDocument(t, db, "many/"+strings.Repeat("x", i+1)+".xml", "<a/>", "application/xml", "", at)
	}
	putDocument(t, db, "a/b.xml", "<b/>", "application/xml", "", at)
	for key, mediaType := range map[string]string{"json.xml": "", ".hidden.xml": "application/xml", "a/b.xml/c.xml": "application/xml", "a//c.xml": "application/xml", "/abs.xml": "application/xml", "a?b.xml": "application/xml"} {
		putDocument(t, db, key, "<c/>", mediaType, "", at)
	}
	putDocument(t, db, "secret.xml", "<s/>", "application/xml", "partner", at)
	parent := t.TempDir()
	dir := filepath.Join(parent, "out")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(parent, filepath.Join(dir, "many")); err != nil { // this symbolic link leads outside of the directory
		t.Fatal(err)
	}
	if out := exportTo(t, db, src, dir); out.Written != 1 || len(out.Skipped) != documentBatch+5+6 {
		t.Errorf("with a symbolic link that leaves the directory: got %d written, %d skipped (%v), want 1 written and the others skipped", out.Written, len(out.Skipped), out.Skipped)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("files outside of the directory: got %v, %v, want no new file", entries, err)
	}
	if err := os.Remove(filepath.Join(dir, "many")); err != nil {
		t.Fatal(err)
	}
	out := exportTo(t, db, src, dir)
	if out.Written != documentBatch+5 || out.Unchanged != 1 || len(out.Skipped) != 6 {
		t.Errorf("got %d written, %d unchanged, skipped %v, want 1 unchanged, 6 skipped and all others written", out.Written, out.Unchanged, out.Skipped)
	}
	info, err := os.Stat(filepath.Join(dir, "a", "b.xml"))
	if err != nil || !info.ModTime().Equal(at) {
		t.Errorf("got %v, %v, want the time %v", info, err, at)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestDocuments_ImportStoresFiles(t *testing.T) {
	src, db := documentSource(t), documentDatabase(t)
	now := time.Now()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/new.xml": "<new/>", "old.xml": "<old/>", "equal.xml": "<equal/>", "half.xml": "<half", "page.xml": "<html>", "bad%2fkey.xml": "<bad/>", "C:drive.xml": "<drive/>",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "passwd.xml")); err != nil {
		t.Fatal(err)
	}
	putDocument(t, db, "old.xml", "<refreshed/>", "application/xml", "", now.Add(time.Minute))
	var notified []schemas.Settled
	run := func() Documents {
		t.Helper()
		out, err := importDocuments(t.Context(), db, src, "layout", dir, func(_ context.Context, s schemas.Settled) error {
			notified = append(notified, s)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := run()
	for _, key := range []string{"old.xml", "half.xml", "page.xml", "bad%2fkey.xml", "passwd.xml"} {
		if out.Skipped[key] == nil {
			t.Errorf("%s is not skipped", key)
		}
	}
	if out.Written != 3 || len(out.Skipped) != 5 || len(notified) != 3 || notified[0].Number == 0 {
		t.Errorf("got %d written, skipped %v, notified %v, want 3 written, 5 skipped, 3 notified with a version", out.Written, out.Skipped, notified)
	}
	s, err := db.Get(t.Context(), schemas.Entity{Source: "court", Facet: "layout", Key: "a/new.xml"})
	text, decodeErr := s.Decode(nil)
	if err != nil || decodeErr != nil || string(text) != "<new/>" || s.MediaType != "application/xml" || !s.Manual {
		t.Errorf("got %q, %+v, %v, %v, want <new/> as application/xml, marked as manual", text, s.State, err, decodeErr)
	}
	if out := run(); out.Written != 0 || out.Unchanged != 3 {
		t.Errorf("a second import: got %d written, %d unchanged, want 0 and 3", out.Written, out.Unchanged)
	}
	if audit, err := db.Audit(t.Context(), 3); err != nil || len(audit) != 2 || audit[0].Action != "snapshot-import" || audit[0].Actor == "" || audit[0].Source != "court" || !strings.Contains(string(audit[0].After), `"documents":4,"facet":"layout"`) {
		t.Errorf("audit: got %+v, %v, want an entry for each of the two imports", audit, err)
	}
	empty := t.TempDir()
	if out := exportTo(t, db, src, empty); out.Written != 4 {
		t.Errorf("export of the import: got %d written, want 4; skipped %v", out.Written, out.Skipped)
	}
}
