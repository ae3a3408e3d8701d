package entities

import (
	"fmt"
	"net/http"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// deleteSnapshot deletes the snapshot and the registration of an entity. It accepts sources and
// facets that were removed from the configuration, so that their snapshots can be deleted.
func (s *Entities) deleteSnapshot(r *http.Request) (admin.Answer, error) {
	e := schemas.Entity{Source: r.PathValue("source"), Facet: r.PathValue("facet"), Key: r.PathValue("key")}
	if err := e.Check(); err != nil {
		return admin.Answer{}, problem.New(http.StatusBadRequest, problem.BadKey, err.Error()+".")
	}
	e = fold(s.Sources, e)
	was, err := s.Store.DeleteSnapshot(r.Context(), e, s.entry(r, "snapshot-delete", e.Source, map[string]string{"facet": e.Facet, "key": e.Key}))
	if err != nil {
		return admin.Answer{}, err
	}
	// The caches are invalidated even if nothing was deleted. An earlier HTTP request may have
	// deleted the snapshot, and failed before it invalidated the caches.
	s.Notifier.Invalidate(r.Context(), e)
	if !was {
		return admin.Answer{}, problem.New(http.StatusNotFound, problem.NoSuchSnapshot, fmt.Sprintf("Nothing is stored of %s, and it is not registered.", e))
	}
	return admin.Answer{Body: map[string]bool{"deleted": true}}, nil
}
