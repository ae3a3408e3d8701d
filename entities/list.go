package entities

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

const (
	defaultPageSize, maxPageSize = 100, 1000
	// maxRowsScanned is the maximum number of rows that one request reads, even if few of them
	// match the filter. It bounds the duration of that request.
	maxRowsScanned = 2000
)

// selection is a filter by source, facet, tier and key prefix. It is part of JSON bodies of the
// admin API.
type selection struct {
	Source  string `json:"source"`
	Facet   string `json:"facet,omitempty"`
	Tier    string `json:"tier,omitempty"`
	Prefix  string `json:"prefix,omitempty"`
	enabled *bool
}

// filter returns the store's filter of a selection, or a problem if the configuration has no such
// source or facet.
func (s *Entities) filter(c selection) (f prefetched.Filter, err error) {
	f = prefetched.Filter{Source: c.Source, Facet: c.Facet, KeyPrefix: c.Prefix, Enabled: c.enabled}
	bad := func(format string, args ...any) error {
		return problem.New(http.StatusBadRequest, problem.BadFilter, fmt.Sprintf(format, args...))
	}
	if c.Tier != "" {
		tier, err := tierOf(c.Tier)
		if err != nil {
			return f, bad("%v.", err)
		}
		f.Tier = &tier
	}
	if c.Prefix != "" && schemas.CheckKey(c.Prefix+"x") != nil {
		return f, bad("prefix can't be the start of a key: it must be UTF-8 without control characters, of at most %d bytes.", schemas.MaxKeyBytes-1)
	}
	if c.Source == "" {
		if c.Facet != "" {
			return f, bad("facet needs source: facets of several sources may have one name.")
		}
		return f, nil
	}
	src, err := findSource(s.Sources, c.Source)
	if err != nil {
		return f, err
	}
	if c.Facet != "" {
		f.KeyPrefix = src.Fold(c.Facet, c.Prefix)
	}
	return f, src.checkFacet(c.Source, c.Facet)
}

// filterOf reads a filter from a query string. A parameter of the query must belong to the filter
// or be named in "others".
func (s *Entities) filterOf(query url.Values, others ...string) (prefetched.Filter, error) {
	known := append([]string{"source", "facet", "tier", "enabled", "prefix"}, others...)
	for name := range query {
		if !slices.Contains(known, name) {
			return prefetched.Filter{}, problem.New(http.StatusBadRequest, problem.BadFilter, fmt.Sprintf("There is no parameter %.40q; there are %s.", name, strings.Join(known, ", ")))
		}
	}
	c := selection{Source: query.Get("source"), Facet: query.Get("facet"), Tier: query.Get("tier"), Prefix: query.Get("prefix")}
	switch word := query.Get("enabled"); word {
	case "true", "false":
		enabled := word == "true"
		c.enabled = &enabled
	case "":
	default:
		return prefetched.Filter{}, problem.New(http.StatusBadRequest, problem.BadFilter, fmt.Sprintf("enabled is %.20q; it must be true or false.", word))
	}
	return s.filter(c)
}

// Page is one page of a list. A page may be short, or empty, although more pages follow, because
// one request reads at most maxRowsScanned rows. Next is the cursor of the next page; nil: this is
// the last page.
type Page struct {
	Entities []Entity `json:"entities"`
	Next     *string  `json:"next"`
}

func (s *Entities) list(r *http.Request) (admin.Answer, error) {
	query := r.URL.Query()
	filter, err := s.filterOf(query, "after", "limit")
	if err != nil {
		return admin.Answer{}, err
	}
	limit := defaultPageSize
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPageSize {
			return admin.Answer{}, problem.New(http.StatusBadRequest, problem.BadLimit, fmt.Sprintf("limit is %.20q; it must be between 1 and %d.", text, maxPageSize))
		}
	}
	after, err := readCursor(query.Get("after"))
	if err != nil {
		return admin.Answer{}, err
	}
	found, next, err := s.page(r.Context(), filter, after, limit)
	page := Page{Entities: make([]Entity, len(found)), Next: next}
	for i, r := range found {
		page.Entities[i] = entityOf(r)
	}
	return admin.Answer{Body: page}, err
}

// page returns at most "limit" entities that match the filter and follow the entity "after", and
// the cursor of the next page. The database selects by source, facet and key prefix, which an index
// covers. The function page checks the other conditions. In SQL they could make the database scan
// millions of rows if few rows match.
func (s *Entities) page(ctx context.Context, f prefetched.Filter, after schemas.Entity, limit int) (found []prefetched.RegisteredEntity, next *string, err error) {
	together := prefetched.Filter{Source: f.Source, Facet: f.Facet}
	if f.Facet != "" {
		together.KeyPrefix = f.KeyPrefix
	}
	look := limit
	if f != together {
		look = maxRowsScanned
	}
	rows, err := s.Store.Entities(ctx, together, after, look)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		if !chosen(f, r) {
			continue
		}
		if found = append(found, r); len(found) == limit {
			return found, cursorOf(r.Entity), nil
		}
	}
	if len(rows) == look {
		next = cursorOf(rows[len(rows)-1].Entity)
	}
	return found, next, nil
}

// chosen reports whether an entity matches the tier, the key prefix and the field Enabled of the
// filter. The database has already checked source and facet.
func chosen(f prefetched.Filter, r prefetched.RegisteredEntity) bool {
	return (f.Tier == nil || *f.Tier == r.Tier) && (f.Enabled == nil || *f.Enabled == r.Enabled) && strings.HasPrefix(r.Entity.Key, f.KeyPrefix)
}

// CountResult is the number of entities that match a filter. If Exact is false, Count is an
// estimate, because an exact count would take too long.
type CountResult struct {
	Count int64 `json:"count"`
	Exact bool  `json:"exact"`
}

func (s *Entities) count(r *http.Request) (admin.Answer, error) {
	filter, err := s.filterOf(r.URL.Query())
	if err != nil {
		return admin.Answer{}, err
	}
	n, exact, err := s.Store.CountEntities(r.Context(), filter)
	return admin.Answer{Body: CountResult{n, exact}}, err
}
