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
	// ackTimeout is how long a delivery waits for Kafka's acknowledgements. Upstreams wait 10 s or
	// longer for the response to a delivery.
	ackTimeout = 5 * time.Second
	// maxWaiting is the maximum number of deliveries per process that wait for the database, Redis or Kafka.
	maxWaiting = 1000
	// retryAfter is the value of the header Retry-After in the response to a delivery that the upstream
	// must repeat.
	retryAfter = 5 * time.Second
	// resultHeader is the name of the response header with the result of a delivery.
	resultHeader = "Freshet-Hook-Result"
)

// Receiver receives the deliveries of all webhooks of a process. Its methods may be called concurrently.
type Receiver struct {
	hooks   map[string]map[string]*Hook // webhooks by source and name
	deps    Deps
	memory  bodyMemory
	waiting chan struct{} // holds one element for each delivery that waits for the database, Redis or Kafka
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

// Run measures the times from deliveries to stored snapshots until ctx ends.
func (r *Receiver) Run(ctx context.Context) error { return r.watch.run(ctx) }

// Settled must be called with each settle message.
func (r *Receiver) Settled(m schemas.Settled) { r.watch.settled(m) }

// response is the body of a response with status 202.
type response struct {
	Requested   int `json:"requested"`   // number of entities for which Kafka has acknowledged a request
	Delayed     int `json:"delayed"`     // number of entities whose refresh is stored in the outbox until its delay has passed
	Held        int `json:"held"`        // number of entities with a hold
	UnknownKeys int `json:"unknownKeys"` // number of keys that are neither stored nor registered
	BadKeys     int `json:"badKeys"`     // number of values that are not valid keys of the facet
}

// Receive handles one delivery and responds to it. If it returns an error, it has not responded: the
// error is a *problem.HTTPError, and the caller must respond with it.
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
	_, _ = w.Write(append(text, '\n')) // writing fails if the sender has disconnected
	return nil
}

// verify reads a delivery, checks its signature, and finds the entities to refresh.
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

// delivery is a delivery with a valid signature. It contains the numbers of the response. They
// increase while the delivery is handled.
type delivery struct {
	hook          *Hook
	received      time.Time
	correlationID string
	response
}

// request requests a refresh of each entity of a delivery. It blocks until each request is
// acknowledged by Kafka or stored in the database.
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

// known returns for each target whether its entity is stored or registered, and the version of the
// entity's snapshot.
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
	var indexes []int // for each element of rest, its index in the slice of
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

// enqueue stores the requests with a delay in the outbox, and enqueues the other ones.
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
	// The records are published even if the sender disconnects, so this context does not end then.
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
	defer cancel()
	failed := 0
	for i, res := range r.deps.Enqueuer.EnqueueAndWait(limit, now) {
		switch res.Outcome {
		case Queued:
			d.Requested++
			if res.Number == 0 { // a retry of the entity covers the request
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

// walkAgain makes sure that another walk follows the open walk of each target that is a collection,
// because the open walk may miss the change. If no walk is open, the request of this delivery begins
// one.
func (r *Receiver) walkAgain(ctx context.Context, targets []target) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	entities := make([]schemas.Entity, len(targets))
	for i, t := range targets {
		entities[i] = t.entity
	}
	return r.deps.Walks.WalkAgain(ctx, entities)
}

// delay stores requests with a delay in the outbox, and wakes the relays when the first of them is due.
// Each request is an outbox event with a trigger that refreshes the entity itself.
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
		// The number of the request that the relay will enqueue is not known yet. Numbers follow the
		// time in milliseconds, so each fetch that begins after the delivery has a higher number than
		// this time.
		r.watch.confirm(r.watch.begin(w.Entity, d.hook, d.received), d.received.UnixMilli())
	}
	r.deps.Wake(ctx, d.hook.source, d.received.Add(shortest))
	return nil
}

// unavailable logs why a delivery was not accepted. It returns the problem that asks the sender to
// repeat the delivery.
func (r *Receiver) unavailable(d *delivery, detail string, cause error) error {
	level := slog.LevelDebug // without a cause, Redis or Kafka is unavailable, which other log messages report
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
