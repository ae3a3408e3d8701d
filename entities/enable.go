package entities

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

const (
	maxKeys = 1000
	// auditKeys is the maximum number of keys that one audit entry contains.
	auditKeys = 10
)

// EnableRequest selects the entities to enable or disable: either by a filter, or by a list of keys
// of one facet. It is the JSON body of POST /admin/v1/entities/enable and
// /admin/v1/entities/disable.
type EnableRequest struct {
	selection
	Keys []string `json:"keys,omitempty"`
	// After is the value Next of the previous response; empty in the first request.
	After string `json:"after,omitempty"`
}

// NewEnableRequest returns a request for the entities that match these values.
func NewEnableRequest(source, facet, tier, prefix string, keys []string) EnableRequest {
	return EnableRequest{selection: selection{Source: source, Facet: facet, Tier: tier, Prefix: prefix}, Keys: keys}
}

// EnableResult is the response to an EnableRequest. Changed is the number of changed entities.
// While Done is false, the client repeats the request with After set to Next.
type EnableResult struct {
	Changed int     `json:"changed"`
	Done    bool    `json:"done"`
	Next    *string `json:"next"`
}

// auditDetails is the content of the audit entry of one request that enables, disables or registers
// entities: the selection, the number of entities, and the first keys.
type auditDetails struct {
	Enabled *bool `json:"enabled,omitempty"` // true: the request enables entities; false: it disables them; nil: it registers them
	selection
	Entities int      `json:"entities"`
	Keys     []string `json:"keys,omitempty"`
	More     int      `json:"moreKeys,omitempty"`
}

// withKeys returns the details with the number of keys in Entities, the first auditKeys keys in
// Keys, and the number of omitted keys in More.
func (a auditDetails) withKeys(keys []string) auditDetails {
	a.Entities, a.Keys = len(keys), keys[:min(len(keys), auditKeys)]
	a.More = len(keys) - len(a.Keys)
	return a
}

// writeAudit writes the audit entry of a request. Callers call writeAudit before the change, so
// that every change has an audit entry.
func (s *Entities) writeAudit(r *http.Request, action string, a auditDetails) error {
	return s.Store.WriteAudit(r.Context(), s.entry(r, action, a.Source, a))
}

// enableHandler returns the handler that enables or disables one page of entities.
func (s *Entities) enableHandler(enabled bool) admin.Handle {
	action := map[bool]string{true: "entities-enable", false: "entities-disable"}[enabled]
	return func(r *http.Request) (admin.Answer, error) {
		var o EnableRequest
		if err := admin.DecodeBody(r.Body, &o, `; the body is {"source":"nexon","facet":"character","prefix":"a"}, or "keys":["somebody"] in place of the prefix`); err != nil {
			return admin.Answer{}, err
		}
		foldAll(s.Sources, o.Source, o.Facet, o.Keys)
		filter, err := s.checkEnable(o)
		if err != nil {
			return admin.Answer{}, err
		}
		after, err := readCursor(o.After)
		if err != nil {
			return admin.Answer{}, err
		}
		details := auditDetails{Enabled: &enabled, selection: o.selection}
		if o.Keys != nil {
			if err := s.writeAudit(r, action, details.withKeys(o.Keys)); err != nil {
				return admin.Answer{}, err
			}
			return s.enableKeys(r.Context(), filter, o.Keys, enabled)
		}
		return s.enablePage(r.Context(), filter, after, enabled, func(n int) error {
			details.Entities = n
			return s.writeAudit(r, action, details)
		})
	}
}

func (s *Entities) checkEnable(o EnableRequest) (prefetched.Filter, error) {
	var err error
	switch {
	case o.Source == "":
		err = errors.New("the source is missing")
	case o.Keys == nil:
	case o.Facet == "":
		err = errors.New("keys need a facet")
	case o.Tier != "" || o.Prefix != "" || o.After != "":
		err = errors.New(`the members "tier", "prefix" and "after" must not be used together with "keys"`)
	case len(o.Keys) == 0 || len(o.Keys) > maxKeys:
		err = fmt.Errorf("there are %d keys; one request takes 1 to %d", len(o.Keys), maxKeys)
	}
	for i, key := range o.Keys {
		if wrong := schemas.CheckKey(key); err == nil && wrong != nil {
			err = fmt.Errorf("keys[%d]: %w", i, wrong)
		}
	}
	if err != nil {
		return prefetched.Filter{}, problem.Body(err)
	}
	return s.filter(o.selection)
}

func (s *Entities) enableKeys(ctx context.Context, f prefetched.Filter, keys []string, enabled bool) (admin.Answer, error) {
	n, err := s.Store.EnableEntities(ctx, f, keys, enabled)
	if err == nil && enabled && n > 0 {
		// This function does not know the due times of the enabled entities. So it wakes the
		// scheduler at once, and the scheduler reads the due times.
		s.Notifier.WakeAt(ctx, f.Source, s.Now())
	}
	return admin.Answer{Body: EnableResult{Changed: n, Done: true}}, err
}

// enablePage reads at most maxRowsScanned registered entities that follow the entity "after", and
// enables or disables the matching entities. Before the change it calls "audit" with the number of
// matching entities, unless none matches.
func (s *Entities) enablePage(ctx context.Context, f prefetched.Filter, after schemas.Entity, enabled bool, audit func(n int) error) (admin.Answer, error) {
	other := !enabled
	f.Enabled = &other
	found, next, err := s.page(ctx, f, after, maxRowsScanned)
	if err != nil {
		return admin.Answer{}, err
	}
	if len(found) > 0 {
		if err := audit(len(found)); err != nil {
			return admin.Answer{}, err
		}
	}
	answer := EnableResult{Done: next == nil, Next: next}
	var first time.Time
	// EnableEntities changes the entities of one facet, so it is called once for each facet.
	for i := 0; i < len(found); {
		facet := found[i].Entity.Facet
		var keys []string
		for ; i < len(found) && found[i].Entity.Facet == facet; i++ {
			keys = append(keys, found[i].Entity.Key)
			if first.IsZero() || found[i].Due.Before(first) {
				first = found[i].Due
			}
		}
		n, err := s.Store.EnableEntities(ctx, prefetched.Filter{Source: f.Source, Facet: facet}, keys, enabled)
		if err != nil {
			return admin.Answer{}, err
		}
		answer.Changed += n
	}
	if enabled && answer.Changed > 0 {
		s.Notifier.WakeAt(ctx, f.Source, first)
	}
	return admin.Answer{Body: answer}, nil
}
