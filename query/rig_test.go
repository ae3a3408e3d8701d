package query

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// testTimeout is the timeout of every wait for an expected event.
const testTimeout = 20 * time.Second

// rig is the query service of a test. It also implements all dependencies of the service, as fakes.
type rig struct {
	testing.TB
	config   Config
	reads    ReadRecorder
	limits   func(key string) string   // returns the visibility that a fetch of the key would have; nil means no visibility
	store    Store                     // store of the service; nil means the rig itself
	console  http.Handler              // handler of the console; nil means that there is no console
	credits  Credits                   // nil means that refreshes cost no credits
	hooks    Hooks                     // receiver of webhooks; nil means that there are none
	runs     func(*source.Source) Runs // returns the service of runs; nil means that there are no paths of runs
	settings func(*source.Facet)       // changes the configuration of the facet "character"; nil means no change
	src      *source.Source
	server   *Server
	reg      *prometheus.Registry

	mu             sync.Mutex // guards the fields below
	snapshots      map[schemas.Entity]store.Snapshot
	params         map[schemas.Entity]map[string]string // params that the entities are registered with
	paramsErr      error
	storeErr       error
	storeReadCount int           // number of reads of the store
	hold           chan struct{} // while this channel is open, reads of the database block; nil means that they do not block
	requests       []UpdateRequest
	respond        func(ctx context.Context, w UpdateRequest) EnqueueResult
	enqueueAndWait func(ctx context.Context, w UpdateRequest) EnqueueResult // result of EnqueueAndWait; nil means the result of the method `respond`
	wait           time.Duration
	blocked        RefreshReason
	blockedUntil   time.Time
	client         access.Client
	refused        error            // error that Authenticate returns; nil means that it succeeds
	limiterCalls   []string         // calls of the ClientLimiter so far
	exceeded       map[string]bool  // names of the limits that the client has exceeded
	missCount      int              // number of keys not found in the store
	refreshNumbers map[string]int64 // numbers of refreshes by client, entity and idempotency key
	refreshKeysErr error            // error that Find and Save of idempotency keys return
}

var measured = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func (r *rig) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	all, err := r.GetAll(ctx, []schemas.Entity{e})
	if err != nil {
		return store.Snapshot{}, err
	}
	if all[0].Version == 0 {
		return store.Snapshot{}, store.ErrNotFound
	}
	return all[0], nil
}

func (r *rig) GetAll(_ context.Context, of []schemas.Entity) ([]store.Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.storeReadCount++
	found := make([]store.Snapshot, len(of))
	for i, e := range of {
		found[i] = r.snapshots[e]
		found[i].Entity = e
	}
	err, hold := r.storeErr, r.hold
	if hold != nil {
		r.mu.Unlock()
		<-hold
		r.mu.Lock()
	}
	return found, err
}

func (r *rig) Enqueue(ctx context.Context, requests []UpdateRequest) []EnqueueResult {
	answers := make([]EnqueueResult, len(requests))
	for i, w := range requests {
		r.mu.Lock()
		r.requests = append(r.requests, w)
		answer := r.respond
		r.mu.Unlock()
		if answers[i] = (EnqueueResult{Queued: true, Number: 100}); answer != nil {
			answers[i] = answer(ctx, w)
		}
	}
	return answers
}

func (r *rig) EnqueueAndWait(ctx context.Context, requests []UpdateRequest) []EnqueueResult {
	r.mu.Lock()
	enqueueAndWait := r.enqueueAndWait
	r.mu.Unlock()
	if enqueueAndWait == nil {
		return r.Enqueue(ctx, requests)
	}
	answers := make([]EnqueueResult, len(requests))
	for i, w := range requests {
		answers[i] = enqueueAndWait(ctx, w)
	}
	return answers
}

func (r *rig) Find(_ context.Context, client string, e schemas.Entity, key string) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refreshNumbers[client+" "+e.String()+" "+key], r.refreshKeysErr
}

func (r *rig) Save(_ context.Context, client string, e schemas.Entity, key string, number int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refreshNumbers == nil {
		r.refreshNumbers = map[string]int64{}
	}
	r.refreshNumbers[client+" "+e.String()+" "+key] = number
	return r.refreshKeysErr
}

func (r *rig) enqueued() []UpdateRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

func (r *rig) storeReads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.storeReadCount
}

func (r *rig) EstimateWait(string, int64) (time.Duration, time.Time, bool) {
	return r.wait, measured, r.wait > 0
}

func (r *rig) Blocked(string) (RefreshReason, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blocked, r.blockedUntil
}

func (r *rig) Subscribe(ctx context.Context, _ func(schemas.Settled), line func(bool)) error {
	line(true)
	<-ctx.Done()
	return nil
}

func (r *rig) Authenticate(*http.Request, string) (access.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.client, r.refused
}

func (r *rig) count(what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limiterCalls = append(r.limiterCalls, what)
	if kind, _, _ := strings.Cut(what, " "); r.exceeded[kind] {
		code := map[string]problem.Code{"requests": problem.TooManyRequests, "lookups": problem.TooManyNewKeys, "wait": problem.TooManyWaiting}[kind]
		p := problem.New(http.StatusTooManyRequests, code, "Too many.")
		p.After, p.Header = 7*time.Second, http.Header{"Ratelimit": {`"x";r=0;t=7`}}
		return p
	}
	return nil
}

// fakeLimiter is the ClientLimiter of a rig (the test setup of the query service).
type fakeLimiter struct{ *rig }

func (r fakeLimiter) AllowRequests(client string, n int) error {
	return r.count(fmt.Sprintf("requests %s %d", client, n))
}

func (r fakeLimiter) RecordRefusal(why access.Refusal) error {
	_ = r.count("refuse " + why.Detail())
	return (*access.ClientLimiter)(nil).RecordRefusal(why)
}

func (r fakeLimiter) AllowLookup(string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.exceeded["lookups"] {
		return nil
	}
	p := problem.New(http.StatusTooManyRequests, problem.TooManyNewKeys, "Too many.")
	p.After = 7 * time.Second
	return p
}

func (r fakeLimiter) RecordMisses(_ string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missCount += n
}

func (r fakeLimiter) AcquireWaitSlot(client string) (func(), error) {
	return func() { _ = r.count("left " + client) }, r.count("wait " + client)
}

// settle delivers a settle message to the service.
func (r *rig) settle(key string, number int64) {
	r.server.onSettled(schemas.Settled{Entity: entity(key), Number: number})
}

func newRig(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	r := &rig{
		TB: t, snapshots: map[schemas.Entity]store.Snapshot{}, exceeded: map[string]bool{},
		config: Config{Memory: 1 << 20}, client: everything, reg: prometheus.NewRegistry(),
	}
	for _, c := range change {
		c(r)
	}
	config := source.DefaultConfig()
	config.BaseURL = "http://upstream.example"
	f := source.DefaultFacet()
	f.KeyPattern = "[^x]+"
	f.KeepFor = 100 * time.Hour
	f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
	shared := f
	shared.Public = true
	if r.settings != nil {
		r.settings(&f)
	}
	config.Facets = map[string]source.Facet{"character": f, "shared": shared}
	src, err := source.New("nexon", config, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.src = src
	ops := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/healthz" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"status":"pass","timestamp":"2026-11-20T20:37:53Z"}`)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok")
	})
	if r.store == nil {
		r.store = r
	}
	var runs Runs
	if r.runs != nil {
		runs = r.runs(src)
	}
	r.server, err = New(r.config, Deps{
		Store: r.store, Sources: map[string]Source{"nexon": limitedSource{src, r.limits}}, Enqueuer: r, IdempotencyKeys: r, Credits: r.credits, SettleSubscriber: r, WaitEstimator: r, Authenticator: r, ClientLimiter: fakeLimiter{r}, ReadRecorder: r.reads,
		Ops: ops, Admin: http.HandlerFunc(echoRequest), Hooks: r.hooks, Runs: runs, Console: r.console, Log: slog.New(slog.DiscardHandler), Metrics: r.reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.server.onConnection(true)
	return r
}

// limitedSource is a source in which the visibility of each key can be set.
type limitedSource struct {
	*source.Source
	visibility func(key string) string
}

func (l limitedSource) Visibility(key string) string {
	if l.visibility == nil {
		return ""
	}
	return l.visibility(key)
}

func (l limitedSource) Visibilities() []string {
	if l.visibility == nil {
		return []string{""}
	}
	return []string{l.visibility("")}
}

func entity(key string) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: "character", Key: key}
}

const content = `{"d":{"name":"유"}}`

// encoded is created once and outside of any synctest bubble, because the zstd codec keeps channels
// between its calls.
var encoded = store.Encode([]byte(content))

// putSnapshot stores a snapshot whose last check was `age` ago, and publishes its settle message.
func (r *rig) putSnapshot(key string, age time.Duration, change ...func(*store.Snapshot)) store.Snapshot {
	p := encoded
	at := time.Now().Add(-age).UTC().Truncate(time.Microsecond)
	s := store.Snapshot{State: store.State{
		Entity: entity(key), Version: 7, Hash: sha256.Sum256([]byte(content)), Encoding: p.Encoding, Size: p.Size,
		FetchedAt: at, CheckedAt: at, UpdatedAt: at.Add(-time.Hour),
	}, Payload: p.Bytes}
	for _, c := range change {
		c(&s)
	}
	r.mu.Lock()
	r.snapshots[s.Entity] = s
	r.mu.Unlock()
	r.settle(key, s.Version)
	return s
}

type answer struct {
	*http.Response
	text string
	body answerBody
}

type answerBody struct {
	Snapshot      json.RawMessage `json:"snapshot"`
	Freshness     store.Freshness `json:"freshness"`
	LastUpdatedAt *time.Time      `json:"lastUpdatedAt"`
	LastCheckedAt *time.Time      `json:"lastCheckedAt"`
	Refresh       refreshState    `json:"refresh"`
	Code          string          `json:"code"`
	Status        int             `json:"status"`
	Key           string          `json:"key"`
	Detail        string          `json:"detail"`
	Items         []answerBody    `json:"items"`
}

// do sends a request and checks the response against the OpenAPI document.
func (r *rig) do(method, target string, headers ...string) answer {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	return r.checked(req, rec)
}

// checked returns a recorded response after checking it against the OpenAPI document.
func (r *rig) checked(req *http.Request, rec *httptest.ResponseRecorder) answer {
	r.Helper()
	a := answer{Response: rec.Result()}
	plain := decodeBody(r.TB, a.Header.Get("Content-Encoding"), rec.Body.Bytes())
	a.text = string(plain)
	if strings.Contains(a.Header.Get("Content-Type"), "json") && len(plain) > 0 && (req.URL.Path != "/healthz" || a.StatusCode != 200) {
		if err := json.Unmarshal(plain, &a.body); err != nil {
			r.Fatalf("%s %s: %s: %v", req.Method, req.URL, a.text, err)
		}
	}
	if !slices.Contains([]string{"/", "/openapi.yaml", "/openapi.json", "/docs"}, req.URL.Path) && req.Method != http.MethodHead {
		openapitest.Check(r, openapitest.Exchange{Request: req, Status: a.StatusCode, Header: a.Header, Response: a.text})
	}
	return a
}

func (r *rig) get(key string, headers ...string) answer {
	r.Helper()
	return r.do(http.MethodGet, "/v1/nexon/character/"+key, headers...)
}

func (r *rig) refresh(key string) answer {
	r.Helper()
	return r.do(http.MethodPost, "/v1/nexon/character/"+key+"/refresh")
}

var everything = access.Client{Name: "ip:192.0.2.1", Scopes: []access.Scope{access.Read, access.Refresh, access.Admin}}

// decodeBody decodes a content encoding, like a client that reads all zstd frames but only one
// gzip member.
func decodeBody(t testing.TB, as string, body []byte) []byte {
	t.Helper()
	if len(body) == 0 {
		return body
	}
	var r io.Reader = bytes.NewReader(body)
	switch as {
	case "":
		return body
	case "zstd":
		z, err := zstd.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		r = z
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		z.Multistream(false)
		r = z
	default:
		t.Fatalf("Content-Encoding: got %q, want a known one", as)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("%s: %v", as, err)
	}
	return plain
}

func (r *rig) facet() source.Facet {
	f, _ := r.server.catalog.sources["nexon"].Facet("character")
	return f
}
