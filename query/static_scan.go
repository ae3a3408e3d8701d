package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

const (
	// staticScanInterval is the interval at which the directories are searched for changed files.
	staticScanInterval = 5 * time.Second
	// maxStaticFiles is the maximum number of files in one directory.
	maxStaticFiles = 10_000
)

// staticScanner finds new and changed files by their size, time and identity. It is used by one
// goroutine at a time.
type staticScanner struct {
	dirs       []*staticDir
	log        *slog.Logger
	conditions observe.Conditions
	gauge      *prometheus.GaugeVec
}

// staticDir is the directory with the static files of one facet.
type staticDir struct {
	source, facet string
	src           Source
	f             source.Facet
	// rejected has the files that were invalid, so that each version is read and logged once.
	rejected map[string]rejectedFile
}

// rejectedFile is a file that is not served, and the reason.
type rejectedFile struct {
	info os.FileInfo
	err  error
}

// newStaticFiles reads the directories of all facets. It returns nil if there are none. An error means
// that a directory can't be read or has too much content.
func newStaticFiles(sources map[string]Source, log *slog.Logger, reg prometheus.Registerer) (*staticFiles, error) {
	s := &staticScanner{log: log, gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "static_files", Help: "Static files by state: served, or rejected because the key or the content is invalid.",
	}, []string{"source", "facet", "state"})}
	reg.MustRegister(s.gauge)
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		for _, facet := range sources[name].FacetNames() {
			if f, _ := sources[name].Facet(facet); f.Static != nil {
				s.dirs = append(s.dirs, &staticDir{source: name, facet: facet, src: sources[name], f: f})
			}
		}
	}
	if len(s.dirs) == 0 {
		return nil, nil //nolint:nilnil // no static files
	}
	files := &staticFiles{scanner: s}
	files.files.Store(&map[schemas.Entity]*staticFile{})
	_, err := files.scan()
	return files, err
}

// run reads changed files and calls `changed` for their entities, until ctx ends.
func (s *staticFiles) run(ctx context.Context, from Store, changed func(schemas.Entity)) {
	work := func(ctx context.Context) {
		entities, _ := s.scan() // scan has logged the error
		for _, e := range entities {
			changed(e)
		}
		s.scanner.conditions.Record(s.scanner.log, conditionStaticCheck, s.check(ctx, from))
	}
	work(ctx)
	poll.Every(ctx, staticScanInterval, work)
}

var conditionStaticCheck = observe.Condition{
	Event: "static_check", Failing: "stored snapshots not compared with static files; the files are served", Recovered: "stored snapshots compared with static files",
}

// scan reads new and changed files, and returns the entities whose file has changed. The files of a
// directory that can't be read stay as they were.
func (s *staticFiles) scan() (changed []schemas.Entity, err error) {
	before := *s.files.Load()
	after := make(map[schemas.Entity]*staticFile, len(before))
	for _, dir := range s.scanner.dirs {
		p, dirErr := dir.read(before, s.scanner.log)
		s.scanner.conditions.Record(s.scanner.log, dir.condition(), dirErr)
		if dirErr != nil {
			err = errors.Join(err, fmt.Errorf("sources.%s.facets.%s.static: %w", dir.source, dir.facet, dirErr))
			for e, file := range before {
				if e.Source == dir.source && e.Facet == dir.facet {
					after[e] = file
				}
			}
			continue
		}
		dir.rejected = p.rejected
		maps.Copy(after, p.found)
		s.scanner.gauge.WithLabelValues(dir.source, dir.facet, "served").Set(float64(len(p.found)))
		s.scanner.gauge.WithLabelValues(dir.source, dir.facet, "rejected").Set(float64(len(p.rejected)))
	}
	for e, file := range after {
		if before[e] != file {
			changed = append(changed, e)
		}
	}
	for e := range before {
		if after[e] == nil {
			changed = append(changed, e)
		}
	}
	if len(changed) > 0 {
		s.files.Store(&after)
		s.unchecked.Store(true)
	}
	return changed, err
}

func (d *staticDir) condition() observe.Condition {
	return observe.Condition{
		Event: "static_dir", Attr: "facet", Value: d.source + "/" + d.facet,
		Failing: "directory of static files not read; the files read before are served", Recovered: "directory of static files read",
	}
}

// staticPass searches a static directory once for new, changed and removed files.
type staticPass struct {
	*staticDir
	root     *os.Root
	before   map[schemas.Entity]*staticFile // the files of the previous pass
	found    map[schemas.Entity]*staticFile
	rejected map[string]rejectedFile
	size     int64
	log      *slog.Logger
}

// read returns the files of the directory. It opens no file outside of the directory: os.Root follows
// no symbolic link that leaves it.
func (d *staticDir) read(before map[schemas.Entity]*staticFile, log *slog.Logger) (*staticPass, error) {
	root, err := os.OpenRoot(d.f.Static.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	p := &staticPass{staticDir: d, root: root, before: before, found: map[schemas.Entity]*staticFile{}, rejected: map[string]rejectedFile{}, log: log}
	return p, fs.WalkDir(root.FS(), ".", p.visit)
}

func (p *staticPass) visit(path string, entry fs.DirEntry, err error) error {
	switch hidden := path != "." && strings.HasPrefix(entry.Name(), "."); {
	case err != nil:
		return err
	case hidden && entry.IsDir():
		return fs.SkipDir
	case hidden || entry.IsDir():
		return nil
	case len(p.found)+len(p.rejected) >= maxStaticFiles:
		return fmt.Errorf("the directory has more than %d files; distribute them among several facets", maxStaticFiles)
	}
	e := schemas.Entity{Source: p.source, Facet: p.facet, Key: path}
	previous := p.before[e]
	file, err := p.load(e, previous)
	switch {
	case errors.Is(err, errTooLarge):
		return err
	case err == nil:
		p.found[e] = file
	case previous != nil: // the last valid version is served until the file is valid again or is deleted
		p.found[e] = previous
	}
	return nil
}

// errTooLarge is the error of a directory whose files together are larger than maxSize.
// `errFileChanging` is the error of a file that was written while it was read; the next pass reads it.
var (
	errTooLarge     = errors.New("the files together are larger than maxSize; increase maxSize, or remove files")
	errFileChanging = errors.New("the file changed while it was read")
)

// load returns the file of an entity. If the file has not changed, it returns the previous one. It
// records a file that is rejected.
func (p *staticPass) load(e schemas.Entity, previous *staticFile) (*staticFile, error) {
	info, err := p.root.Stat(e.Key)
	if err != nil { // this happens, for example, for a symbolic link that leaves the directory
		if info, _ = p.root.Lstat(e.Key); info == nil {
			return nil, err
		}
		return nil, p.reject(e.Key, info, err)
	}
	if p.size += info.Size(); p.size > int64(p.f.Static.MaxSize) {
		return nil, errTooLarge
	}
	if previous != nil && isSame(previous.info, info) {
		return previous, nil
	}
	if known, found := p.staticDir.rejected[e.Key]; found && isSame(known.info, info) {
		p.rejected[e.Key] = known
		return nil, known.err
	}
	content, err := p.content(e.Key, info)
	switch {
	case errors.Is(err, errFileChanging):
		return nil, err
	case err != nil:
		return nil, p.reject(e.Key, info, err)
	}
	f := p.f
	f.Public = f.Public && p.src.Visibility(e.Key) == ""
	return newStaticFile(e, f, info, content), nil
}

// reject records a file that is not served, and logs it once.
func (p *staticPass) reject(path string, info os.FileInfo, err error) error {
	if known, found := p.staticDir.rejected[path]; !found || !isSame(known.info, info) {
		p.log.Warn("static file rejected; correct or remove it", "facet", p.source+"/"+p.facet, "file", path, "err", err)
	}
	p.rejected[path] = rejectedFile{info, err}
	return err
}

// content reads a file, or returns an error if its key or its content is invalid.
func (p *staticPass) content(key string, info os.FileInfo) ([]byte, error) {
	if err := schemas.CheckKey(key); err != nil {
		return nil, err
	}
	if folded := p.f.FoldKey(key); folded != key {
		return nil, fmt.Errorf("the setting keyFold changes its key to %q; rename the file", folded)
	}
	if err := p.src.CheckKey(p.facet, key); err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file; copy the content into a file")
	}
	file, err := p.root.Open(key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, info.Size()+1))
	if err != nil {
		return nil, err
	}
	if now, err := file.Stat(); err != nil || !isSame(info, now) || int64(len(content)) != info.Size() {
		return nil, errFileChanging
	}
	return content, p.f.Raw.Check(content, "")
}

// isSame reports whether two results of Stat describe the same content.
func isSame(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// ReadDocuments reads the files of a directory as documents of a raw facet, by the rules of static
// files, without a maximum size. It returns a write for each document, without a version, and the
// reason for each file that was rejected, by its path.
func ReadDocuments(dir string, src *source.Source, facet string) (writes []store.Write, rejected map[string]error, err error) {
	d := &staticDir{source: src.Name(), facet: facet, src: src}
	d.f, _ = src.Facet(facet)
	d.f.Static = &source.Static{Dir: dir, MaxSize: math.MaxInt64}
	p, err := d.read(nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	rejected = map[string]error{}
	for path, r := range p.rejected {
		rejected[path] = r.err
	}
	for e, file := range p.found {
		payload := store.Payload{Encoding: file.Encoding, Bytes: file.payload, Size: file.Size, MediaType: file.MediaType}
		writes = append(writes, store.Write{
			Entity: e, CheckedAt: file.CheckedAt, Hash: file.Hash, ExtractVersion: file.ExtractVersion,
			Payload: func() (store.Payload, error) { return payload, nil },
		})
	}
	slices.SortFunc(writes, func(a, b store.Write) int { return strings.Compare(a.Entity.Key, b.Entity.Key) })
	return writes, rejected, nil
}
