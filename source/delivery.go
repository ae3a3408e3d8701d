package source

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/source/links"
)

// Delivery configures how content is stored and served, and which links in it are followed.
type Delivery struct {
	// Raw makes the facet a raw facet: it has one document, and its content is the unchanged bytes of
	// this document, such as XML or an image.
	Raw *Raw `yaml:"raw,omitempty"`
	// Immutable marks content that does not change under its key: a snapshot stays FRESH forever,
	// and browsers do not revalidate it (RFC 8246). A refresh that is requested explicitly still
	// replaces it.
	Immutable bool `yaml:"immutable,omitempty"`
	// Static is a directory of files that the query service serves as content of the facet.
	Static *Static `yaml:"static,omitempty"`
	// Links configures the search for keys of other entities in new content of a raw facet. Each of
	// these entities is requested.
	Links *links.Config `yaml:"links,omitempty"`
	// Wait is how long a read waits for the first snapshot of an entity if the request does not set
	// its own wait; at most 30s. Afterwards it gets 503. With 0s, such a read gets 202 at once.
	Wait time.Duration `yaml:"wait,omitempty"`
	// Collection makes the facet a collection: the list in its only document is kept item by item,
	// even if the list is very long.
	Collection *items.Collection `yaml:"collection,omitempty"`
	// Derived computes the content of the facet from stored items of collections, without a call. The facet
	// has no documents.
	Derived *derived.Config `yaml:"derived,omitempty"`

	derivedUses []derivedUse // derived facets that read the items of this facet
	derivedName string       // name of the facet if it is derived
}

// Static configures a directory of files. The path of a file below the directory is the key of its
// entity.
type Static struct {
	// Dir is the directory. A query service reads it when it starts, and again when a file changes. Files
	// and directories whose names begin with a dot are skipped.
	Dir string `yaml:"dir"`
	// Order is when the files are served. With first, they are served before the database and the
	// upstream are read. With last, they are served only if nothing else can be served. Empty means
	// first.
	Order string `yaml:"order,omitempty" enum:"first,last"`
	// MaxSize is the maximum size of all files of the directory together, before compression; 0 means
	// 64MiB.
	MaxSize Bytes `yaml:"maxSize,omitempty"`
}

// The values of Static.Order. An empty value is staticFirst.
const staticFirst, staticLast = "first", "last"

// First reports whether the files are served before the database and the upstream.
func (s Static) First() bool { return s.Order != staticLast }

// defaultStaticSize is the default of Static.MaxSize.
const defaultStaticSize Bytes = 64 << 20

// ImmutableFor is the FreshFor of immutable content: 100 years. It is longer than any installation runs,
// and short enough for sums of times and durations.
const ImmutableFor = 100 * 365 * 24 * time.Hour

// maxDefaultWait is the maximum of Delivery.Wait: the longest wait that the query service allows.
const maxDefaultWait = 30 * time.Second

// checkDelivery returns an error for a setting of Delivery that is invalid. It sets the defaults of
// Static, and FreshFor of immutable content.
func (f *Facet) checkDelivery() error {
	if f.Raw != nil {
		if err := f.Raw.checkSettings(*f); err != nil {
			return fmt.Errorf("raw: %w", err)
		}
	}
	if f.Immutable {
		f.FreshFor = ImmutableFor
	}
	if f.Wait < 0 || f.Wait > maxDefaultWait {
		return fmt.Errorf("wait: %v must be from 0s to %v", f.Wait, maxDefaultWait)
	}
	if f.Static == nil {
		return nil
	}
	s := *f.Static
	s.Order, s.MaxSize = cmp.Or(s.Order, staticFirst), cmp.Or(s.MaxSize, defaultStaticSize)
	f.Static = &s
	switch {
	case s.Dir == "":
		return errors.New("static.dir: is missing; write the path of the directory with the files")
	case f.Raw == nil:
		return errors.New("static: needs `raw`, because a file is served unchanged; set `raw: {mediaType: application/xml}` or another media type")
	case s.Order != staticFirst && s.Order != staticLast:
		return fmt.Errorf("static.order: %q must be %s or %s", s.Order, staticFirst, staticLast)
	case s.Order == staticFirst && !f.Immutable:
		return errors.New("static.order: `first` needs `immutable: true`, because an entity with a file is never fetched for a read; set `order: last` to serve the files only if nothing else can be served")
	case s.MaxSize < 0:
		return fmt.Errorf("static.maxSize: %d must be positive", s.MaxSize)
	}
	return nil
}
