package entities

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

// PinRequest names entities to pin to a tier, or to unpin. Reads don't change the tier of a pinned
// entity. It is the JSON body of POST /admin/v1/entities/pin and /admin/v1/entities/unpin.
type PinRequest struct {
	Source string   `json:"source"`
	Facet  string   `json:"facet"`
	Keys   []string `json:"keys"`
	Tier   string   `json:"tier,omitempty"` // tier to pin the entities to; empty in a request to unpin
}

// PinResult is the response to a PinRequest. Changed does not count entities that are not
// registered, or already have the requested pin.
type PinResult struct {
	Changed int `json:"changed"`
}

// pinAudit is the content of the audit entry of a PinRequest.
type pinAudit struct {
	Facet string   `json:"facet"`
	Tier  string   `json:"tier,omitempty"`
	Keys  []string `json:"keys"`
	More  int      `json:"moreKeys,omitempty"`
}

// pinHandler returns the handler that pins or unpins entities.
func (s *Entities) pinHandler(pin bool) admin.Handle {
	action, form := "entities-unpin", `; the body is {"source":"nexon","facet":"character","keys":["somebody"]}`
	if pin {
		action, form = "entities-pin", `; the body is {"source":"nexon","facet":"character","tier":"hot","keys":["somebody"]}`
	}
	return func(r *http.Request) (admin.Answer, error) {
		var p PinRequest
		if err := admin.DecodeBody(r.Body, &p, form); err != nil {
			return admin.Answer{}, err
		}
		foldAll(s.Sources, p.Source, p.Facet, p.Keys)
		src, err := s.checkPin(p, pin)
		if err != nil {
			return admin.Answer{}, err
		}
		entry := pinAudit{Facet: p.Facet, Tier: p.Tier, Keys: p.Keys[:min(len(p.Keys), auditKeys)]}
		entry.More = len(p.Keys) - len(entry.Keys)
		if err := s.Store.WriteAudit(r.Context(), s.entry(r, action, p.Source, entry)); err != nil {
			return admin.Answer{}, err
		}
		of := make([]schemas.Entity, len(p.Keys))
		for i, key := range p.Keys {
			of[i] = schemas.Entity{Source: p.Source, Facet: p.Facet, Key: key}
		}
		var answer PinResult
		if !pin {
			answer.Changed, err = s.Store.UnpinEntities(r.Context(), of)
			return admin.Answer{Body: answer}, err
		}
		tier, _ := tierOf(p.Tier) // no error is possible: checkPin has rejected unknown tiers
		if answer.Changed, err = s.Store.PinEntities(r.Context(), of, tier); err != nil {
			return admin.Answer{}, err
		}
		all := make([]prefetched.RegisteredEntity, len(of))
		for i, e := range of {
			all[i] = prefetched.RegisteredEntity{Entity: e, Tier: tier, Pinned: true}
			all[i].Due, _ = src.Schedule.FirstDue(all[i], s.Now())
		}
		if err := s.bringForward(r.Context(), all); err != nil {
			return admin.Answer{}, err
		}
		s.Notifier.WakeAt(r.Context(), p.Source, earliest(all))
		return admin.Answer{Body: answer}, nil
	}
}

func (s *Entities) checkPin(p PinRequest, pin bool) (Source, error) {
	src, err := findSource(s.Sources, p.Source)
	if err == nil {
		err = src.checkFacet(p.Source, p.Facet)
	}
	if err != nil {
		return src, err
	}
	_, bad := tierOf(p.Tier)
	switch {
	case p.Facet == "":
		err = errors.New("the facet is missing")
	case pin && p.Tier == "":
		err = errors.New("the tier is missing; it must be hot, warm or cold")
	case pin && bad != nil:
		err = bad
	case !pin && p.Tier != "":
		err = errors.New("leave out the tier: an entity that is unpinned keeps its tier until its reads change it")
	case len(p.Keys) == 0 || len(p.Keys) > maxKeys:
		err = fmt.Errorf("there are %d keys; one request takes 1 to %d", len(p.Keys), maxKeys)
	}
	for i, key := range p.Keys {
		if wrong := schemas.CheckKey(key); err == nil && wrong != nil {
			err = fmt.Errorf("keys[%d]: %w", i, wrong)
		}
	}
	if err != nil {
		return src, problem.Body(err)
	}
	if pin && !src.Schedule.Prefetches(p.Facet) {
		return src, notPrefetched(p.Source, p.Facet)
	}
	return src, nil
}

// bringForward moves the due times of newly pinned entities forward to the due times in "all",
// which follow from the new tier. In its previous tier an entity may have been due much later.
func (s *Entities) bringForward(ctx context.Context, all []prefetched.RegisteredEntity) error {
	var due []prefetched.DueTime
	for _, r := range all {
		if r.Pinned {
			due = append(due, prefetched.DueTime{Entity: r.Entity, At: r.Due})
		}
	}
	if len(due) == 0 {
		return nil
	}
	return s.Store.BringForward(ctx, due)
}

// earliest returns the earliest due time of the entities.
func earliest(all []prefetched.RegisteredEntity) time.Time {
	return slices.MinFunc(all, func(a, b prefetched.RegisteredEntity) int { return a.Due.Compare(b.Due) }).Due
}
