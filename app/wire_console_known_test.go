package app

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/store/prefetched"
)

// onPostgres returns a function that replaces the SQLite database of the parts by PostgreSQL.
func onPostgres(t *testing.T) func(*parts) {
	t.Helper()
	url := servicetest.Postgres(t)
	if _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return func(p *parts) { p.store = db }
}

var (
	anybody = access.Client{Name: "key:1", Scopes: []access.Scope{access.Read}}
	partner = access.Client{Name: "key:2", Scopes: []access.Scope{access.Read, access.See("partner")}}
)

func (f *consoleFixture) look(key string, c access.Client) console.Entity {
	f.Helper()
	found, err := f.deps.Entities.Entity(f.Context(), testEntity(key), c)
	if err != nil {
		f.Fatal(err)
	}
	return found
}

func TestEntity_HasTheHintOfItsFacet(t *testing.T) {
	f := newConsoleFixture(t, func(*parts) {})
	f.write("open", 1, time.Hour, "")
	f.write("limited", 1, time.Hour, "partner")
	if err := (status.Hints{Redis: f.rdb, Source: builtInSource}).SaveHint(t.Context(), "character", "basic.id"); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"open": "basic.id", "limited": ""} {
		if got := f.look(key, anybody).ChangingMember; got != want {
			t.Errorf("changing member of %s: got %q, want %q", key, got, want)
		}
	}
}

func eachDatabase(t *testing.T, test func(f *consoleFixture)) {
	t.Helper()
	eachDatabaseWith(t, func(*parts) {}, test)
}

func eachDatabaseWith(t *testing.T, change func(*parts), test func(f *consoleFixture)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(newConsoleFixture(t, change)) })
	t.Run("PostgreSQL", func(t *testing.T) {
		database := onPostgres(t)
		test(newConsoleFixture(t, func(p *parts) { change(p); database(p) }))
	})
}

func TestEntityReader_CollectsAllState(t *testing.T) {
	eachDatabase(t, func(f *consoleFixture) {
		facet := f.config.Sources[builtInSource].Facets["character"]
		id := f.config.Sources[builtInSource].Facets["id"]
		nothing := console.Entity{Entity: testEntity("a"), Lifetimes: store.Lifetimes{FreshFor: facet.FreshFor, NotFoundFor: facet.NotFoundFor, KeepFor: facet.KeepFor, AliasNotFoundFor: id.NotFoundFor}, Status: store.Status{Entity: testEntity("a")}}
		nothing.Aliases = []console.Alias{{Param: "ocid", From: "id", Lifetimes: store.Lifetimes{FreshFor: id.FreshFor, NotFoundFor: id.NotFoundFor, KeepFor: id.KeepFor}}}
		got := f.look("a", anybody)
		if len(got.DeadLetters) == 0 {
			got.DeadLetters = nil
		}
		if !reflect.DeepEqual(got, nothing) {
			f.Errorf("unknown entity: got %+v, want %+v", got, nothing)
		}
		f.write("a", 7, time.Minute, "")
		f.write("ab", 8, time.Minute, "")
		now := time.Now().UTC().Truncate(time.Microsecond)
		for _, key := range []string{"ab", "b"} { // the registrations of similar keys must not be shown for the key a
			if _, err := f.store.RegisterEntities(f.Context(), []prefetched.RegisteredEntity{{Entity: testEntity(key), Tier: prefetched.Hot, Enabled: true, Due: now}}); err != nil {
				f.Fatal(err)
			}
		}
		if got := f.look("a", anybody); got.Registered != nil {
			f.Errorf("registration: got %+v, want none", got.Registered)
		}
		if _, err := f.store.RegisterEntities(f.Context(), []prefetched.RegisteredEntity{{Entity: testEntity("a"), Tier: prefetched.Warm, Enabled: true, Due: now}}); err != nil {
			f.Fatal(err)
		}
		for i := range 12 {
			for _, key := range []string{"a", "b"} {
				err := f.store.WriteFailure(f.Context(), store.Status{
					Entity: testEntity(key), State: store.Failed, Reason: "UPSTREAM_5XX", Error: "it failed", Version: int64(100 + i), Until: now.Add(time.Hour), Lane: schemas.High, Since: now, UpdatedAt: now,
				}, &deadletters.DeadLetter{
					ID:     deadletters.ID{Topic: schemas.DeadLetterTopic(builtInSource), Partition: int32(len(key)), Offset: int64(2*i) + int64(key[0])},
					Entity: testEntity(key), Reason: "UPSTREAM_5XX", At: now.Add(time.Duration(i) * time.Second),
				})
				if err != nil {
					f.Fatal(err)
				}
			}
		}
		got = f.look("a", anybody)
		if !got.Stored || got.State.Version != 7 || string(got.Payload) != `{"name":"a"}` {
			f.Errorf("stored: got %v, state %+v, payload %s; want true, version 7, payload %s",
				got.Stored, got.State, got.Payload, `{"name":"a"}`)
		}
		if got.Status.State != store.Failed || got.Status.Version != 111 || !got.Status.Until.Equal(now.Add(time.Hour)) {
			f.Errorf("status: got %+v, want failed, version 111, until %v", got.Status, now.Add(time.Hour))
		}
		if got.Registered == nil || got.Registered.Entity != testEntity("a") || got.Registered.Tier != prefetched.Warm {
			f.Errorf("registration: got %+v, want one of %v in tier warm", got.Registered, testEntity("a"))
		}
		if len(got.DeadLetters) != 10 || !got.DeadLetters[0].At.Equal(now.Add(11*time.Second)) || got.DeadLetters[9].Entity != testEntity("a") {
			f.Errorf("dead letters: got %+v, want 10 of %v, the first at %v", got.DeadLetters, testEntity("a"), now.Add(11*time.Second))
		}
	})
}

func TestEntityReader_HidesInvisibleContent(t *testing.T) {
	f := newConsoleFixture(t, func(p *parts) {
		c := p.config.Sources[builtInSource]
		c.Auth.SecretEnv = ""
		c.Credentials = []source.Credential{
			{Name: "theirs", SecretEnv: "THEIRS", Keys: "now", Visibility: "partner"}, {Name: "ours", SecretEnv: "OURS"},
		}
		p.config.Sources[builtInSource] = c
	})
	f.write("then", 7, time.Minute, "partner") // the stored snapshot is visible to the partner only; a snapshot that is fetched now would be visible to everybody
	f.write("now", 8, time.Minute, "")         // the stored snapshot is visible to everybody; a snapshot that is fetched now would be visible to the partner only
	f.write("never", 9, time.Minute, "")
	for _, key := range []string{"then", "now", "never"} {
		got := f.look(key, anybody)
		if got.Stored != (key == "never") || (got.Payload == nil) != (key != "never") {
			t.Errorf("%s: anonymous client: got %+v, want a payload: %v", key, got, key == "never")
		}
		for _, c := range []access.Client{partner, {Name: "key:3", Scopes: []access.Scope{access.Admin}}} {
			if got := f.look(key, c); string(got.Payload) != `{"name":"`+key+`"}` {
				t.Errorf("%s: client %s: got %s, want %s", key, c.Name, got.Payload, `{"name":"`+key+`"}`)
			}
		}
	}
}

func TestKnown_AnswersAnUnseenEntityLikeAnUnknownOne(t *testing.T) {
	eachDatabaseWith(t, func(p *parts) {
		c := p.config.Sources[builtInSource]
		c.Auth.SecretEnv = ""
		c.Credentials = []source.Credential{
			{Name: "theirs", SecretEnv: "THEIRS", Keys: "hr.*", Visibility: "partner"}, {Name: "ours", SecretEnv: "OURS"},
		}
		p.config.Sources[builtInSource] = c
	}, func(f *consoleFixture) {
		now := time.Now().UTC().Truncate(time.Microsecond)
		for _, key := range []string{"hr1", "then"} {
			f.write(key, 7, time.Minute, "partner")
			if _, err := f.store.RegisterEntities(f.Context(), []prefetched.RegisteredEntity{{Entity: testEntity(key), Tier: prefetched.Hot, Enabled: true, Due: now}}); err != nil {
				f.Fatal(err)
			}
			if err := f.store.WriteFailure(f.Context(), store.Status{
				Entity: testEntity(key), State: store.Failed, Reason: "UPSTREAM_4XX", Error: "refused", Version: 8, Until: now.Add(time.Hour), Lane: schemas.High, Since: now, UpdatedAt: now,
			}, &deadletters.DeadLetter{
				ID: deadletters.ID{Topic: schemas.DeadLetterTopic(builtInSource), Offset: int64(key[0])}, Entity: testEntity(key), Reason: "UPSTREAM_4XX", At: now, Visibility: "partner",
			}); err != nil {
				f.Fatal(err)
			}
			if err := f.rdb.HSet(f.Context(), "upd:{"+testEntity(key).String()+"}", "hold", "FAILED 9999999999999 8", "ver", "8").Err(); err != nil {
				f.Fatal(err)
			}
			want := f.look("nobody", anybody)
			want.Entity, want.Status.Entity = testEntity(key), testEntity(key)
			want.DeadLetters = nil
			if got := f.look(key, anybody); !reflect.DeepEqual(got, want) {
				f.Errorf("%s without see:partner: got %+v, want %+v", key, got, want)
			}
			if got := f.look(key, partner); !got.Stored || len(got.DeadLetters) != 1 || got.Registered == nil || got.Request.Hold == "" {
				f.Errorf("%s with see:partner: got %+v, want all of it", key, got)
			}
		}
		f.write("public", 7, time.Minute, "")
		if err := f.store.WriteFailure(f.Context(), store.Status{
			Entity: testEntity("public"), State: store.Failed, Version: 8, Until: now, Lane: schemas.High, Since: now, UpdatedAt: now,
		}, &deadletters.DeadLetter{
			ID: deadletters.ID{Topic: schemas.DeadLetterTopic(builtInSource), Offset: 7}, Entity: testEntity("public"), At: now, Visibility: "partner",
		}); err != nil {
			f.Fatal(err)
		}
		if got := f.look("public", anybody); !got.Stored || len(got.DeadLetters) != 0 {
			f.Errorf("an entity that was limited when it became a dead letter: got %+v, want no dead letter", got)
		}
	})
}

// The console must show the lock, the hold and the cool-down from the entity's Redis hash, unless
// they have expired. The test writes the hash in the form that the scripts of package lua use.
func TestEntityReader_ShowsCoalescingState(t *testing.T) {
	f := newConsoleFixture(t, nil)
	const ms = "9999999999999"
	far := time.UnixMilli(9999999999999).UTC()
	for _, c := range []struct {
		what   string
		fields []string
		want   console.RequestState
	}{
		{"nothing", nil, console.RequestState{}},
		{"in the air", []string{"lock", "HIGH 100 " + ms + " PENDING", "ver", "100"}, console.RequestState{Lane: schemas.High, Number: 100, Until: far, Issued: 100}},
		{"in Kafka", []string{"lock", "LOW 100 " + ms + " CONFIRMED", "ver", "100"}, console.RequestState{Lane: schemas.Low, Number: 100, Confirmed: true, Until: far, Issued: 100}},
		{"being fetched", []string{"lock", "LOW 100 " + ms + " CONFIRMED", "ver", "101"}, console.RequestState{Lane: schemas.Low, Number: 100, Confirmed: true, Until: far, Issued: 101}},
		{"held", []string{"hold", "FAILED " + ms + " 100", "ver", "100"}, console.RequestState{Hold: "FAILED", HoldUntil: far, Issued: 100}},
		{"cooling", []string{"cooldown", ms + " 100 " + ms, "ver", "100"}, console.RequestState{CooldownUntil: far, Issued: 100}},
		{"over", []string{"lock", "LOW 100 1000 CONFIRMED", "hold", "FAILED 1000 100", "cooldown", "1000 100 1000"}, console.RequestState{}},
		{"of another server", []string{"lock", "LOW 100 " + ms + " CONFIRMED", "server", "0123456789abcdef"}, console.RequestState{}},
		{"satisfied", []string{"ver", "100", "done", "99"}, console.RequestState{Issued: 100, Done: 99}},
		{"overtaken by what is stored", []string{"lock", "LOW 7 " + ms + " CONFIRMED", "ver", "9"}, console.RequestState{Issued: 9}},
	} {
		hash := "upd:{" + testEntity("a").String() + "}"
		if err := f.rdb.Del(t.Context(), hash).Err(); err != nil {
			t.Fatal(err)
		}
		if len(c.fields) > 0 {
			if err := f.rdb.HSet(t.Context(), hash, c.fields).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if strings.HasPrefix(c.what, "overtaken") {
			f.write("a", 7, time.Minute, "")
		}
		if got := f.look("a", anybody).Request; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	f.stopRedis()
	if got := f.look("a", anybody); got.Request != (console.RequestState{Unknown: true}) || !got.Stored || string(got.Payload) == "" {
		t.Errorf("without Redis: got %+v, want an unknown request, a stored payload", got)
	}
}

func TestEntityReader_FailsWithoutDatabase(t *testing.T) {
	f := newConsoleFixture(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if got, err := f.deps.Entities.Entity(ctx, testEntity("a"), anybody); err == nil {
		t.Errorf("canceled context: got %+v, want an error", got)
	}
}

func TestEntityReader_RejectsInvalidKey(t *testing.T) {
	f := newConsoleFixture(t, nil)
	for e, mention := range map[schemas.Entity]string{
		testEntity(""): "", {Source: "other", Facet: "character", Key: "a"}: `unknown source "other"; the configuration has nexon`,
		{Source: builtInSource, Facet: "other", Key: "a"}: "it has character", testEntity(strings.Repeat("x", 2000)): "",
	} {
		err := f.deps.Entities.CheckKey(e)
		if err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%.40s: got %v, want an error that contains %q", e, err, mention)
		}
		_, unseen := f.deps.Entities.Entity(t.Context(), e, anybody)
		message, refused := f.deps.Entities.Refresh(t.Context(), []schemas.Entity{e}, anybody)
		if unseen == nil || refused == nil || message != nil {
			t.Errorf("%.40s: got %v, %v, %v; want an error of each call, no answer", e, unseen, refused, message)
		}
	}
	if err := f.deps.Entities.CheckKey(testEntity("a")); err != nil {
		t.Error(err)
	}
}

// refreshOne refreshes one entity and returns the console's message.
func refreshOne(t *testing.T, k console.Entities, e schemas.Entity, c access.Client) (string, error) {
	t.Helper()
	results, err := k.Refresh(t.Context(), []schemas.Entity{e}, c)
	if err != nil {
		return "", err
	}
	return results[0].Message, nil
}

func TestConsoleRefresh_DescribesResult(t *testing.T) {
	f := newConsoleFixture(t, nil)
	refresh := func(want string) {
		t.Helper()
		message, err := refreshOne(t, f.deps.Entities, testEntity("a"), anybody)
		if err != nil || !strings.HasPrefix(message, want) {
			t.Errorf("refresh: got %q, %v, want %q", message, err, want)
		}
	}
	refresh("A refresh is queued.")
	f.write("limited", 1, time.Minute, "partner")
	if message, err := refreshOne(t, f.deps.Entities, testEntity("limited"), access.Client{Scopes: []access.Scope{access.Inspect, access.Refresh}}); err != nil || !strings.Contains(message, "may not see this entity") {
		t.Errorf("refresh without the visibility: got %q, %v, want a text that contains %q", message, err, "may not see this entity")
	}
	request := f.look("a", anybody).Request
	if request.Lane != schemas.High || request.Number == 0 || request.CooldownUntil.IsZero() {
		t.Errorf("request: got %+v, want lane %v, a number, the end of the cooldown", request, schemas.High)
	}
	refresh("A refresh is queued.") // this refresh causes no second update request: the first request, still in flight, covers it
	coalescing := producer.NewCoalescer(f.rdb)
	servicetest.WaitFor(t, eventTimeout, "the whole cool-down", func() bool { return time.Until(f.look("a", anybody).Request.CooldownUntil) > 20*time.Second })
	if err := coalescing.Settle(t.Context(), []schemas.End{{Entity: testEntity("a"), Number: request.Number, Satisfied: true}}); err != nil {
		t.Fatal(err)
	}
	refresh("No refresh is queued: the entity was refreshed on request recently. The next request is possible at " + f.look("a", anybody).Request.CooldownUntil.Format("15:04:05") + " UTC.")
	if w := f.send(http.MethodPost, "/v1/nexon/character/a/refresh"); w.Code != http.StatusTooManyRequests {
		t.Errorf("refresh by the API: got %d %s, want 429", w.Code, w.Body)
	}
	f.stopRedis()
	refresh("No refresh is queued: Redis or Kafka does not answer.")
	for want, a := range map[string]query.EnqueueResult{
		"A refresh is being queued": {Pending: true}, "No refresh is queued: Kafka is slower": {Reason: query.ReasonBusy}, "No refresh is queued: HELD_X.": {Reason: "HELD_X"},
	} {
		if got := describeRefresh(a); !strings.HasPrefix(got, want) {
			t.Errorf("%+v: got %s, want a text that begins with %q", a, got, want)
		}
	}
}

func TestConsoleRefresh_ChargesNonAdminClient(t *testing.T) {
	f := newConsoleFixture(t, nil)
	sources, err := f.sources()
	if err != nil {
		t.Fatal(err)
	}
	f.write("stored", 7, time.Hour, "")
	answer := query.EnqueueResult{Queued: true}
	var clients []access.Client
	k := entityReader{f.parts, sources, func(_ context.Context, client access.Client, all []schemas.Entity, _ source.Facet) []query.EnqueueResult {
		clients = append(clients, client)
		return slices.Repeat([]query.EnqueueResult{answer}, len(all))
	}}
	person := access.Client{Name: "key:3", Scopes: []access.Scope{access.Inspect, access.Refresh}}
	refresh := func(c access.Client, key, want string) {
		t.Helper()
		message, err := refreshOne(t, k, testEntity(key), c)
		if err != nil || !strings.HasPrefix(message, want) {
			t.Errorf("%s: got %q, %v, want a text that begins with %q", key, message, err, want)
		}
	}
	refresh(person, "new", "A refresh is queued.")
	answer = query.EnqueueResult{Reason: query.ReasonOutstanding, Refused: &access.Refusal{Max: 7}}
	refresh(person, "other", "No refresh is queued. Your outstanding requests have reached your current share, 7.")
	answer = query.EnqueueResult{Reason: query.ReasonDown}
	refresh(person, "stored", "No refresh is queued: Redis or Kafka")
	answer = query.EnqueueResult{Queued: true}
	refresh(access.Client{Name: "key:4", Scopes: []access.Scope{access.Admin}}, "another", "A refresh is queued.")
	if first, last := clients[0].Name, clients[len(clients)-1].Name; first != person.Name || last != "key:4" {
		t.Errorf("clients of the requests: got first %q, last %q, want %q and key:4", first, last, person.Name)
	}
}
