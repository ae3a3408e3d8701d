package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/webhooks"
)

// hooks are the webhooks of a query service.
type hooks struct {
	receiver *webhooks.Receiver
	run      func(context.Context) error // reloads the secrets, and measures the times from deliveries to snapshots, until its context ends
}

// newHooks returns the webhooks of all sources; nil if the configuration has none. It fails if a secret
// is missing or invalid.
func newHooks(p parts, sources map[string]*source.Source) (*hooks, error) {
	var all []*webhooks.Hook
	var reloads []func(context.Context)
	var errs []error
	for _, source := range p.config.sourceNames() {
		c := p.config.Sources[source].Webhooks
		for _, name := range slices.Sorted(maps.Keys(c)) {
			read := func() (string, error) { return readHookSecrets(source, name, c[name].Verify) }
			secrets, err := read()
			if err != nil {
				errs = append(errs, err)
				continue
			}
			h, err := webhooks.NewHook(source, name, c[name], hookKeys{sources[source]}, secrets)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, h)
			if c[name].Verify.SecretFile != "" {
				log := p.log.With("source", source, "webhook", name)
				reloads = append(reloads, func(ctx context.Context) { reloadHookSecrets(ctx, h, secrets, read, log) })
			}
		}
	}
	if err := errors.Join(errs...); err != nil || len(all) == 0 {
		return nil, err
	}
	receiver := webhooks.New(all, webhooks.Deps{
		Store: p.store, Walks: hookWalks{collection.New(p.store), sources}, Enqueuer: hookEnqueuer{p.producer}, Now: time.Now, Log: p.log, Metrics: p.reg,
		Wake: func(ctx context.Context, source string, at time.Time) {
			poll.WakeAt(ctx, p.rdb, outbox.Channel(source), at, p.log)
		},
	})
	return &hooks{receiver, func(ctx context.Context) error {
		g := newGroup(ctx)
		g.run(receiver.Run)
		for _, reload := range reloads {
			g.run(func(ctx context.Context) error { reload(ctx); return nil })
		}
		<-g.ctx.Done()
		return g.stop()
	}}, nil
}

// withHooks adds the webhooks to the dependencies of the query service. h is nil if there are no
// webhooks.
func withHooks(d query.Deps, h *hooks) query.Deps {
	if h != nil {
		d.Hooks = h.receiver
	}
	return d
}

// readHookSecrets reads the secrets of a webhook from its file or environment variable.
func readHookSecrets(source, name string, v webhooks.Verify) (string, error) {
	setting := "sources." + source + ".webhooks." + name + ".verify"
	if v.SecretFile != "" {
		return readSecret(setting+".secretFile", v.SecretFile)
	}
	if secrets := os.Getenv(v.SecretEnv); secrets != "" {
		return secrets, nil
	}
	return "", fmt.Errorf("%s.secretEnv: %s is not set; set it to the secret that the upstream signs its deliveries with", setting, redactValue(v.SecretEnv, "secretEnv"))
}

// reloadHookSecrets reads the secret file of a webhook every secretReloadInterval until ctx ends. While
// the file can't be used, the previous secrets stay in use. The third failure in a row is logged.
func reloadHookSecrets(ctx context.Context, h *webhooks.Hook, known string, read func() (string, error), log *slog.Logger) {
	followSecret(ctx, known, read, func(now string) error {
		err := h.SetSecrets(now)
		if err == nil {
			log.Info("webhook secrets changed")
		}
		return err
	}, func(err error) { log.Warn("webhook secret file unusable, old secrets stay in use", "err", err) })
}

// hookWalks makes the collections usable as webhooks.Walks.
type hookWalks struct {
	collections *collection.Collections
	sources     map[string]*source.Source
}

// WalkAgain makes sure that another walk follows the open walk of each collection. Other entities are
// ignored.
func (w hookWalks) WalkAgain(ctx context.Context, of []schemas.Entity) error {
	lists := slices.DeleteFunc(slices.Clone(of), func(e schemas.Entity) bool {
		f, known := w.sources[e.Source].Facet(e.Facet)
		return !known || f.Collection == nil
	})
	if len(lists) == 0 {
		return nil
	}
	return w.collections.WalkAgain(ctx, lists)
}

// hookKeys makes a source usable as webhooks.Keys.
type hookKeys struct{ *source.Source }

// Fold returns the canonical spelling of a key.
func (k hookKeys) Fold(facet, key string) string { return foldKeys(k.Source)(facet, key) }

// hookEnqueuer makes a producer usable as webhooks.Enqueuer.
type hookEnqueuer struct{ *producer.Producer }

// EnqueueAndWait enqueues strict requests and waits for Kafka's acknowledgements.
func (e hookEnqueuer) EnqueueAndWait(ctx context.Context, all []webhooks.Request) []webhooks.Result {
	requests := make([]producer.Request, len(all))
	for i, r := range all {
		requests[i] = producer.Request{Entity: r.Entity, Lane: r.Lane, Reason: schemas.Trigger, Floor: r.Floor, CorrelationID: r.CorrelationID}
	}
	results := make([]webhooks.Result, len(all))
	for i, r := range e.EnqueueAllAndWait(ctx, requests) {
		results[i].Number = r.Number
		switch {
		case r.Err != nil:
		case r.Queued(), r.Outcome == producer.Held && r.HoldReason == schemas.HoldAlias: // the entity waits for its alias, and its stored retry is due as soon as the alias is fetched
			results[i].Outcome = webhooks.Queued
		case r.Outcome == producer.Held:
			results[i].Outcome = webhooks.Held
		}
	}
	return results
}
