package webhooks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// storeTimeout is the timeout of each call of the database.
	storeTimeout = 2 * time.Second
	// ackTimeout is how long a delivery waits for Kafka. Senders wait 10 s or longer for a response.
	ackTimeout = 5 * time.Second
	// maxWaiting is the maximum number of deliveries per process that wait for the database, Redis or Kafka.
	maxWaiting = 1000
	// retryAfter is the Retry-After of a delivery that must be repeated.
	retryAfter = 5 * time.Second
	// resultHeader is the response header with the result of a delivery.
	resultHeader = "Freshet-Hook-Result"
)

// Receiver receives the deliveries of all webhooks of a process. Its methods may be called concurrently.
type Receiver struct {
	hooks   map[string]map[string]*Hook // by source and name
	deps    Deps
	memory  bodyMemory
	waiting chan struct{} // has an element for each delivery that waits
	metrics *metrics
	watch   *storedWatch
}

// New returns the receiver of webhooks.
func New(hooks []*Hook, deps Deps) *Receiver {
	r := &Receiver{
		hooks: map[string]map[string]*Hook{}, deps: deps, memory: newBodyMemory(), waiting: make(chan struct{}, maxWaiting), metrics: newMetrics(deps.Metrics),
	}
	r.watch = newStoredWatch(deps.Store, r.metrics.stored, deps.Now, deps.Log)
	for _, h := range hooks {
		if r.hooks[h.source] == nil {
			r.hooks[h.source] = map[string]*Hook{}
		}
		r.hooks[h.source][h.name] = h
		r.metrics.deliveries.WithLabelValues(h.source, h.name, string(accepted))
		r.metrics.last.WithLabelValues(h.source, h.name)
	}
	return r
}

// Run measures the times from deliveries to stored snapshots. It returns when ctx ends.
func (r *Receiver) Run(ctx context.Context) error { return r.watch.run(ctx) }

// Settled receives the message that a request was settled.
func (r *Receiver) Settled(m schemas.Settled) { r.watch.settled(m) }

// response is the body of a response with status 202.
type response struct {
	Requested   int `json:"requested"`   // entities for which Kafka has acknowledged a request
	Delayed     int `json:"delayed"`     // entities whose request is stored, and enqueued after the delay
	Held        int `json:"held"`        // entities with a hold
	UnknownKeys int `json:"unknownKeys"` // keys that are neither stored nor registered
	BadKeys     int `json:"badKeys"`     // values that are not valid keys of the facet
}

// Receive handles one delivery. An error is a *problem.HTTPError, which the caller responds with.
func (r *Receiver) Receive(w http.ResponseWriter, req *http.Request, source, name, correlationID string) error {
	h := r.hooks[source][name]
	if h == nil {
		return problem.New(http.StatusNotFound, problem.NoSuchPath, "There is no such webhook. The setting sources.NAME.webhooks of the configuration lists all webhooks.")
	}
	done := func(re result, err error) error {
		r.metrics.deliveries.WithLabelValues(source, name, string(re)).Inc()
		if err != nil {
			w.Header().Set(resultHeader, string(re))
			r.deps.Log.Debug("webhook delivery rejected", "source", source, "webhook", name, "result", string(re), "correlation_id", correlationID)
		}
		return err
	}
	ev, re, err := r.verify(w, req, h)
	if err != nil {
		return done(re, err)
	}
	select {
	case r.waiting <- struct{}{}:
		defer func() { <-r.waiting }()
	default:
		return done(unavailable, unavailableProblem("Too many deliveries wait for Kafka."))
	}
	d := delivery{hook: h, received: r.deps.Now(), correlationID: correlationID}
	d.BadKeys = ev.badKeys
	re, err = r.request(req.Context(), &d, ev)
	if err != nil {
		return done(re, err)
	}
	_ = done(re, nil)
	w.Header().Set(resultHeader, string(re))
	w.Header().Set("Cache-Control", "no-store")
	if re != accepted {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	text, err := json.Marshal(d.response)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(append(text, '\n')) // an error means that the sender disconnected
	return nil
}

// verify reads and verifies a delivery, and finds the entities to refresh.
func (r *Receiver) verify(w http.ResponseWriter, req *http.Request, h *Hook) (event, result, error) {
	secrets := *h.secrets.Load()
	s, err := h.config.Verify.readHeader(req.Header, secrets, r.deps.Now())
	if err != nil {
		return event{}, resultOf(err), problem.New(http.StatusUnauthorized, problem.BadSignature, sentence(err))
	}
	if req.ContentLength > maxBody {
		return event{}, tooLarge, problem.Body(&http.MaxBytesError{Limit: maxBody})
	}
	body, release, err := r.memory.read(http.MaxBytesReader(w, req.Body, maxBody))
	defer release()
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case errors.Is(err, errMemory):
		return event{}, unavailable, unavailableProblem(sentence(err))
	case large:
		return event{}, tooLarge, problem.Body(err)
	case err != nil:
		return event{}, badBody, problem.New(http.StatusBadRequest, problem.BadBody, "The body could not be read to its end.")
	case !s.valid(body, secrets):
		return event{}, badSignature, problem.New(http.StatusUnauthorized, problem.BadSignature, sentence(errSignature))
	}
	r.metrics.last.WithLabelValues(h.source, h.name).Set(float64(r.deps.Now().UnixMilli()) / 1000)
	ev, err := h.read(req.Header, body)
	switch {
	case errors.Is(err, errManyKeys):
		return event{}, tooLarge, problem.New(http.StatusRequestEntityTooLarge, problem.BodyTooLarge, sentence(err))
	case err != nil:
		return event{}, badBody, problem.New(http.StatusBadRequest, problem.BadBody, sentence(err))
	}
	return ev, "", nil
}

func resultOf(err error) result {
	if errors.Is(err, errAge) {
		return expired
	}
	return badSignature
}

// delivery is a verified delivery, with the numbers of its response so far.
type delivery struct {
	hook          *Hook
	received      time.Time
	correlationID string
	response
}

// request requests the entities of a delivery. It returns when each request is durable.
func (r *Receiver) request(ctx context.Context, d *delivery, ev event) (result, error) {
	switch {
	case !ev.matched:
		return unknownEvent, nil
	case len(ev.targets) == 0:
		return noKey, nil
	}
	known, versions, err := r.known(ctx, ev.targets)
	if err != nil {
		return unavailable, r.unavailable(d, "The database is unavailable.", err)
	}
	after := time.Duration(0)
	targets, floors := make([]target, 0, len(ev.targets)), make([]int64, 0, len(ev.targets))
	for i, t := range ev.targets {
		if !known[i] {
			if ok, wait := d.hook.newKeys.allow(d.received); !ok {
				d.UnknownKeys++
				after = wait
				continue
			}
		}
		targets, floors = append(targets, t), append(floors, versions[i])
	}
	if err := r.enqueue(ctx, d, targets, floors); err != nil {
		return unavailable, err
	}
	switch {
	case after > 0:
		p := problem.New(http.StatusTooManyRequests, problem.TooManyNewKeys, fmt.Sprintf("The limit newKeys of the webhook does not allow %d of the keys now.", d.UnknownKeys))
		p.After = max(time.Second, after)
		return limited, p
	case d.Requested+d.Delayed > 0:
		return accepted, nil
	case d.Held > 0:
		return held, nil
	}
	return unknownKey, nil
}

// known reports for each entity whether it is stored or registered, and the version of its snapshot.
func (r *Receiver) known(ctx context.Context, of []target) (known []bool, versions []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	entities := make([]schemas.Entity, len(of))
	for i, t := range of {
		entities[i] = t.entity
	}
	states, err := r.deps.Store.States(ctx, entities)
	if err != nil {
		return nil, nil, err
	}
	known, versions = make([]bool, len(of)), make([]int64, len(of))
	var rest []schemas.Entity
	var indexes []int // for each element of `rest`, its index in `of`
	for i, s := range states {
		versions[i] = s.Version
		if known[i] = s.Version > 0; !known[i] {
			rest, indexes = append(rest, entities[i]), append(indexes, i)
		}
	}
	if len(rest) == 0 {
		return known, versions, nil
	}
	registered, err := r.deps.Store.EntityParams(ctx, rest)
	if err != nil {
		return nil, nil, err
	}
	for j, i := range indexes {
		known[i] = registered[j] != nil
	}
	return known, versions, nil
}

// enqueue stores the delayed requests and enqueues the others.
func (r *Receiver) enqueue(ctx context.Context, d *delivery, targets []target, floors []int64) error {
	var later []store.Write
	var now []Request
	for i, t := range targets {
		if delay, longest := t.rule.Delays(); delay > 0 {
			later = append(later, store.Write{Entity: t.entity, CheckedAt: d.received, Outbox: store.OutboxEvents{Triggers: []store.Trigger{
				{Facet: t.entity.Facet, Quiet: delay, MaxDelay: longest, Lane: t.rule.Lane},
			}}})
			continue
		}
		now = append(now, Request{Entity: t.entity, Lane: cmp.Or(t.rule.Lane, schemas.Low), Floor: floors[i], CorrelationID: d.correlationID})
	}
	if err := errors.Join(r.walkAgain(ctx, targets), r.delay(ctx, d, later)); err != nil {
		return r.unavailable(d, "The database is unavailable.", err)
	}
	if len(now) == 0 {
		return nil
	}
	watched := make([]*watched, len(now))
	for i, req := range now {
		watched[i] = r.watch.begin(req.Entity, d.hook, d.received)
	}
	// The records are published even if the sender disconnects, so Kafka's acknowledgement is awaited too.
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
	defer cancel()
	failed := 0
	for i, res := range r.deps.Enqueuer.EnqueueAndWait(limit, now) {
		switch res.Outcome {
		case Queued:
			d.Requested++
			if res.Number == 0 { // the entity's retry covers the request
				res.Number = d.received.UnixMilli()
			}
			r.watch.confirm(watched[i], res.Number)
			continue
		case Held:
			d.Held++
		case Unavailable:
			failed++
		}
		r.watch.drop(watched[i])
	}
	if failed > 0 {
		return r.unavailable(d, "Kafka or Redis is unavailable.", nil)
	}
	return nil
}

// walkAgain lets another walk follow the open walks of the targets that are collections, because these walks may
// miss the change. A collection without an open walk begins one with the request of the delivery.
func (r *Receiver) walkAgain(ctx context.Context, targets []target) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	entities := make([]schemas.Entity, len(targets))
	for i, t := range targets {
		entities[i] = t.entity
	}
	return r.deps.Walks.WalkAgain(ctx, entities)
}

// delay stores delayed requests and wakes the relays when they are due. Each request is an outbox event with a
// trigger of the entity's own facet.
func (r *Receiver) delay(ctx context.Context, d *delivery, later []store.Write) error {
	if len(later) == 0 {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := r.deps.Store.WriteOutbox(limit, later); err != nil {
		return err
	}
	d.Delayed = len(later)
	shortest := later[0].Outbox.Triggers[0].Quiet
	for _, w := range later {
		shortest = min(shortest, w.Outbox.Triggers[0].Quiet)
		// The number of the later request is not known yet. A fetch that begins after the delivery has a
		// number above this time in milliseconds.
		r.watch.confirm(r.watch.begin(w.Entity, d.hook, d.received), d.received.UnixMilli())
	}
	r.deps.Wake(ctx, d.hook.source, d.received.Add(shortest))
	return nil
}

// unavailable returns the problem for a delivery that must be repeated, and logs the cause.
func (r *Receiver) unavailable(d *delivery, detail string, cause error) error {
	level := slog.LevelDebug // Redis' and Kafka's outages are logged elsewhere
	if cause != nil {
		level = slog.LevelWarn
	}
	r.deps.Log.Log(context.Background(), level, "webhook delivery not accepted; the upstream must repeat it",
		"source", d.hook.source, "webhook", d.hook.name, "correlation_id", d.correlationID, "err", cause)
	return unavailableProblem(detail)
}

func unavailableProblem(detail string) error {
	p := problem.New(http.StatusServiceUnavailable, problem.NotQueued, detail+" Send the delivery again.")
	p.After = retryAfter
	return p
}

// sentence returns the text of an error as a sentence.
func sentence(err error) string {
	text := err.Error()
	return string(text[0]-'a'+'A') + text[1:] + "."
}
