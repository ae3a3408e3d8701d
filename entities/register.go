package entities

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

const (
	maxBodyBytes = 1 << 20
	maxRegister  = 5000
	// maxErrors is the maximum number of errors in the list of a response. The text of the response
	// (detail) contains at most maxNamedErrors of these errors.
	maxErrors, maxNamedErrors = 100, 3

	// maxParamsBytes bounds the total size of an entity's params, and maxParamNameBytes the size of
	// one name. With these limits an UpdateRequest stays far below schemas.MaxRequestBytes, even if
	// JSON escapes every byte of the params.
	maxParamsBytes, maxParamNameBytes = 4096, 64
)

// RegisterRequest registers entities of one facet. It is the JSON body of POST /admin/v1/entities.
type RegisterRequest struct {
	Source   string            `json:"source"`
	Facet    string            `json:"facet"`
	Entities []json.RawMessage `json:"entities"` // each element is an EntitySpec as JSON
}

// EntitySpec is one entity to register.
type EntitySpec struct {
	Key    string            `json:"key"`
	Params map[string]string `json:"params,omitempty"` // params of the entity that differ from the facet's own params
	// Tier pins the entity to a tier. If it is empty, the reads of the entity choose the tier: a
	// new entity starts in the tier cold, and a registered entity keeps its tier.
	Tier    string `json:"tier,omitempty"`
	Enabled *bool  `json:"enabled,omitempty"`
}

// ParseEntitySpec parses a spec from JSON and checks it. The server makes the checks that depend on
// the configuration of the source.
func ParseEntitySpec(text []byte) (o EntitySpec, err error) {
	if !utf8.Valid(text) {
		return o, errors.New("it is not valid UTF-8")
	}
	if !admin.IsObject(text) {
		return o, errors.New(`it must be an object, as in {"key":"somebody","tier":"hot"}`)
	}
	if err := admin.Decode(text, &o); err != nil {
		return o, fmt.Errorf("%w; there are key, params, tier and enabled", err)
	}
	return o, o.Check()
}

// Check returns an error if the key, the tier or the params are invalid.
func (o EntitySpec) Check() error {
	if err := schemas.CheckKey(o.Key); err != nil {
		return err
	}
	if o.Tier != "" {
		if _, err := tierOf(o.Tier); err != nil {
			return err
		}
	}
	size := 0
	for name, value := range o.Params {
		size += len(name) + len(value)
		switch {
		case name == "" || len(name) > maxParamNameBytes || !printable(name):
			return fmt.Errorf("the param %.80q must have a name of 1 to %d bytes without control characters", name, maxParamNameBytes)
		case !printable(value):
			return fmt.Errorf("the param %s must be UTF-8 without control characters", name)
		}
	}
	if size > maxParamsBytes {
		return fmt.Errorf("the params have %d bytes; at most %d are allowed", size, maxParamsBytes)
	}
	return nil
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// RegisterResult contains the number of new entities (Added), and of entities that were registered
// already and were updated (Known).
type RegisterResult struct {
	Added int `json:"added"`
	Known int `json:"known"`
}

func (s *Entities) register(r *http.Request) (admin.Answer, error) {
	var b RegisterRequest
	if err := admin.DecodeBody(r.Body, &b, `; the body is {"source":"nexon","facet":"character","entities":[{"key":"somebody","tier":"hot"}]}`); err != nil {
		return admin.Answer{}, err
	}
	src, err := findSource(s.Sources, b.Source)
	if err == nil {
		err = src.checkFacet(b.Source, b.Facet)
	}
	switch {
	case err != nil:
	case b.Facet == "":
		err = problem.Body(errors.New("the facet is missing"))
	case !src.Schedule.Prefetches(b.Facet):
		err = notPrefetched(b.Source, b.Facet)
	case len(b.Entities) > maxRegister:
		err = problem.Body(fmt.Errorf("there are %d entities; one request takes %d", len(b.Entities), maxRegister))
	}
	if err != nil {
		return admin.Answer{}, err
	}
	all, err := s.registered(b, src)
	if err != nil {
		return admin.Answer{}, err
	}
	n := len(all)
	if n > 0 {
		keys := make([]string, n)
		for i, r := range all {
			keys[i] = r.Entity.Key
		}
		details := auditDetails{selection: selection{Source: b.Source, Facet: b.Facet}}
		if err := s.writeAudit(r, "entities-register", details.withKeys(keys)); err != nil {
			return admin.Answer{}, err
		}
	}
	added, err := s.Store.RegisterEntities(r.Context(), all)
	if err != nil {
		return admin.Answer{}, err
	}
	if added < n { // entities that were registered already may be due later than their new tier requires
		if err := s.bringForward(r.Context(), all); err != nil {
			return admin.Answer{}, err
		}
	}
	if added > 0 || slices.ContainsFunc(all, func(r prefetched.RegisteredEntity) bool { return r.Pinned }) {
		s.Notifier.WakeAt(r.Context(), b.Source, earliest(all))
	}
	return admin.Answer{Body: RegisterResult{added, n - added}}, nil
}

func notPrefetched(source, facet string) error {
	return problem.New(http.StatusUnprocessableEntity, problem.NotPrefetched, fmt.Sprintf(
		"Entities of %s/%s are not prefetched. Set sources.%s.prefetch.facets.%s.mode to tiers or adaptive, in every role's configuration.", source, facet, source, facet))
}

// registered converts the entities of a request for the store. If entities are invalid, it returns
// one problem with all errors.
func (s *Entities) registered(b RegisterRequest, src Source) ([]prefetched.RegisteredEntity, error) {
	now := s.Now()
	all := make([]prefetched.RegisteredEntity, len(b.Entities))
	var wrong []problem.Error
	var named []string
	mistakes := 0
	for i, text := range b.Entities {
		o, err := ParseEntitySpec(text)
		if err == nil {
			o.Key = src.Fold(b.Facet, o.Key)
			err = src.Keys.CheckKey(b.Facet, o.Key)
		}
		if err == nil {
			err = src.checkParams(b.Facet, o.Params)
		}
		if err != nil {
			if mistakes++; len(wrong) < maxErrors {
				wrong = append(wrong, problem.Error{Detail: err.Error(), Pointer: fmt.Sprintf("#/entities/%d", i)})
			}
			if len(named) < maxNamedErrors {
				named = append(named, fmt.Sprintf("entities[%d] %.40q: %v", i, o.Key, err))
			}
			continue
		}
		all[i] = o.registered(schemas.Entity{Source: b.Source, Facet: b.Facet, Key: o.Key}, src, now)
	}
	if mistakes == 0 {
		return all, nil
	}
	p := problem.New(http.StatusBadRequest, problem.BadEntities,
		fmt.Sprintf("%[2]d of %[1]d entities are invalid, and none was registered: %[3]s.", len(all), mistakes, strings.Join(named, "; ")))
	p.Errors = wrong
	return nil, p
}

// registered returns the entity of the spec for the store. A hash of the entity determines its
// first due time, so that the entities of a large import are not all due at the same time.
func (o EntitySpec) registered(e schemas.Entity, src Source, now time.Time) prefetched.RegisteredEntity {
	r := prefetched.RegisteredEntity{Entity: e, Params: o.Params, Tier: prefetched.Cold, Enabled: o.Enabled == nil || *o.Enabled}
	if o.Tier != "" {
		r.Tier, _ = tierOf(o.Tier) // no error is possible: Check has rejected unknown tiers
		r.Pinned = true
	}
	r.Due, _ = src.Schedule.FirstDue(r, now)
	return r
}
