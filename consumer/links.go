package consumer

import (
	"errors"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/links"
	"github.com/freshet/freshet/store"
)

// linksIn returns the links that content of the task's entity contains.
func linksIn(src *source.Source, t *task, content []byte) links.Found {
	if t.facet.Links == nil {
		return links.Found{}
	}
	target, _ := src.Facet(t.facet.Links.Facet)
	rules := links.Rules{Fold: target.FoldKey, Check: func(key string) error {
		return errors.Join(schemas.CheckKey(key), src.CheckKey(t.facet.Links.Facet, key))
	}}
	if t.facet.Links.Facet == t.request.Facet {
		rules.Own = t.request.Key
	}
	return t.facet.Links.Find(content, rules)
}

// followsLinks reports whether the links in the task's content are requested. They are not requested if
// the task's request has the maximum depth already.
func (t *task) followsLinks() bool {
	return t.facet.Links != nil && t.request.Depth < t.facet.Links.MaxDepth
}

// linkTriggers returns one trigger for each key: it requests the entity that the link in the task's
// content leads to.
func linkTriggers(src *source.Source, t *task, keys []string) (triggers []store.Trigger) {
	if !t.followsLinks() {
		return nil
	}
	target, _ := src.Facet(t.facet.Links.Facet)
	for _, key := range keys {
		triggers = append(triggers, store.Trigger{Facet: t.facet.Links.Facet, Key: key, Depth: t.request.Depth + 1, Backoff: target.FreshFor})
	}
	return triggers
}
