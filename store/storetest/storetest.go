// Package storetest is the conformance suite that store/postgres and store/sqlite must pass:
//
//	func TestPasses(t *testing.T) { storetest.Run(t, open) }
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// Store has all methods of a store. A package that uses a store declares the methods it needs.
type Store interface {
	// Get returns the snapshot of an entity, or store.ErrNotFound.
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	// GetAll returns the snapshots in the order of the given entities. The given entities may contain
	// duplicates. Version is 0 for an entity without a stored state.
	GetAll(ctx context.Context, entities []schemas.Entity) ([]store.Snapshot, error)
	// States returns the states in the given order; Version is 0 for an entity without a state.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	// Write stores all writes in one transaction.
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
	// Delete deletes the snapshot and the status of an entity, if they exist.
	Delete(ctx context.Context, e schemas.Entity) error
	// DeleteSnapshot deletes the snapshot, status, registration and undelivered triggers (with a quiet
	// time) of an entity, and writes the audit entry. `existed` is false if nothing was stored.
	DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (existed bool, err error)
	Ping(ctx context.Context) error
	// Setting returns the override of a source; Revision is 0 if the source never had one.
	Setting(ctx context.Context, source string) (store.Setting, error)
	// ChangeSetting writes the setting and the entry in one transaction. It returns
	// store.ErrConflict unless setting.Revision is the stored revision plus 1.
	ChangeSetting(ctx context.Context, setting store.Setting, entry store.AuditEntry) error
	// Audit returns at most `limit` entries, newest first.
	Audit(ctx context.Context, limit int) ([]store.AuditEntry, error)
	// WriteAudit writes one audit entry.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
	// Keys returns the API keys, oldest first. If active is true, it leaves out revoked keys.
	Keys(ctx context.Context, active bool) ([]store.APIKey, error)
	// AddKey writes the key and the entry in one transaction.
	AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error
	// RevokeKey revokes the key and writes the entry in one transaction, or returns
	// store.ErrKeyNotFound if the key does not exist or is revoked.
	RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error
	// Used returns the latest stored count of a quota policy's calls; zero if none is stored.
	Used(ctx context.Context, source, policy string) (store.Usage, error)
	// SetUsed writes a count. It ignores counts of earlier days, and lower counts of the same day.
	SetUsed(ctx context.Context, source, policy string, u store.Usage) error
	// Statuses returns the statuses in the given order; State is empty without a status.
	Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error)
	// StatesInRange and StatusesInRange return at most `limit` rows in the order of their keys.
	StatesInRange(ctx context.Context, f store.KeyRange, after string, limit int) ([]store.State, error)
	StatusesInRange(ctx context.Context, f store.KeyRange, after string, limit int) ([]store.Status, error)
	// WriteFailure writes the status and the dead letter in one transaction. It omits a dead letter
	// that is nil. It omits a status that has no State, or that belongs to an earlier fetch than the
	// stored success or failure.
	WriteFailure(ctx context.Context, status store.Status, deadLetter *deadletters.DeadLetter) error
	// ClaimRetries claims at most `limit` due retries, earliest first, for the duration of the lease.
	// During the lease no other call claims these retries.
	ClaimRetries(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error)
	// NextRetryTime returns the time at which the next retry is due; zero if the source has none.
	NextRetryTime(ctx context.Context, source string) (time.Time, error)
	credits.Store
	DeadLetters
	Entities
	Outbox
	Tokens
}

// Run runs the suite. `open` returns an empty store for each test.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for _, test := range []struct {
		name string
		run  func(b suite)
	}{
		{"unknown entity", testUnknown},
		{"GetAll keeps the order", testGetAll},
		{"first write", testFirstWrite},
		{"unchanged content writes no payload", testTouch},
		{"changed content", testChange},
		{"lower version changes nothing", testGuard},
		{"repeated write", testRepeat},
		{"not modified needs its base", testNotModified},
		{"not-found result keeps content", testNotFound},
		{"other extract version is no change", testRewrite},
		{"media type of raw content", testMediaType},
		{"visibility of the last fetch", testVisibility},
		{"not-found result deletes other visibility", testVisibilityOfNotFound},
		{"visibility: concurrent writes", testVisibilityRace},
		{"changed alias rejects a write", testAliasGuard},
		{"unchanged content after a change of its alias", testAliasUnchanged},
		{"content of aliases", testAliasPayload},
		{"alias: concurrent change", testAliasChangeRace},
		{"alias and entity in one batch", testAliasInBatch},
		{"not-found result of an alias", testAliasNotFound},
		{"alias wakes waiting entities", testAliasWakes},
		{"alias stored before the wait", testAliasRecheck},
		{"alias: concurrent wait", testAliasRace},
		{"alias triggers when replaced", testAliasTrigger},
		{"batch is atomic", testAtomic},
		{"batch keeps the higher version", testDuplicates},
		{"keys of every kind", testKeys},
		{"Delete", testDelete},
		{"DeleteSnapshot with audit", testDeleteSnapshot},
		{"Delete: concurrent writes", testDeleteRace},
		{"WriteAudit", testWriteAudit},
		{"cancelled context", testCancelled},
		{"random writes match the model", testModel},
		{"concurrent batches", testConcurrent},
		{"setting", testSetting},
		{"audit log, newest first", testAudit},
		{"setting: wrong revision", testSettingGuard},
		{"setting: concurrent changes", testSettingRace},
		{"API keys", testKeysOfClients},
		{"API key: concurrent revocations", testKeyRevokedOnce},
		{"tokens", testTokens},
		{"token: claims and failures", testTokenClaims},
		{"token: concurrent renewals", testTokenRace},
		{"token: refusal", testTokenRefusal},
		{"token: hostile text", testTokenHostile},
		{"quota usage never decreases", testUsage},
		{"quota usage: concurrent writes", testUsageRace},
		{"status of the latest failure", testStatus},
		{"success deletes an earlier failure", testSuccessEndsFailure},
		{"other writes keep the failure", testFailureSurvivesOtherWrites},
		{"failure: concurrent success", testFailureRace},
		{"failure writes no state", testFailureAlone},
		{"failure with invalid text", testHostileFailure},
		{"ClaimRetries", testClaimRetries},
		{"ClaimRetries: concurrent calls", testClaimRetriesRace},
		{"dead letters are open until handled", testDeadLetters},
		{"dead letters by visibility", testDeadLetterVisibility},
		{"dead letter filters and pages", testDeadLetterFilter},
		{"dead letter groups", testDeadLetterGroups},
		{"dead letters by hour and job", testDeadLetterHours},
		{"handled prefixes", testHandledPrefixes},
		{"job lease and progress", testJobs},
		{"replay stopped with a chunk in flight", testReplayStoppedInChunk},
		{"SetJobState: concurrent resumptions", testResumeRace},
		{"LeaseJob: concurrent calls", testJobRace},
		{"registering again keeps history", testRegister},
		{"thousands of entities", testRegisterMany},
		{"entity filters and pages", testEntityFilter},
		{"key ranges", testKeyRanges},
		{"Registrations", testRegistrations},
		{"SampleEntities", testSampleEntities},
		{"EnableEntities", testEnable},
		{"PinEntities and UnpinEntities", testPin},
		{"ObserveReads", testReads},
		{"entities: concurrent writes", testEntityWritesNoDeadlock},
		{"ClaimEntities, earliest first", testClaim},
		{"ObserveReads makes entities due", testRefreshNow},
		{"EntityParams", testEntityParams},
		{"ClaimEntities reads wanted payloads", testClaimedContent},
		{"ClaimEntities calls decide", testDecide},
		{"claim without requests", testClaimWithoutRequests},
		{"claim rolled back", testClaimRolledBack},
		{"TakeOverClaim", testTakeOverClaim},
		{"TakeOverClaim: concurrent calls", testTakeOverRace},
		{"ClaimEntities: concurrent calls", testClaimRace},
		{"EntitiesDueAfter and BringForward", testBringForward},
		{"SetPrice once per interval", testPrice},
		{"change inserts an outbox event", testOutbox},
		{"failed write rolls back events", testOutboxOfFailedWrite},
		{"MarkChangesPublished keeps triggers", testMarkChangesPublished},
		{"ClaimOutboxEvents", testOutboxClaim},
		{"ClaimOutboxEvents: concurrent calls", testOutboxClaimRace},
		{"outbox: unbroken hash chain", testOutboxHashChain},
		{"links of changed content", testLinks},
		{"links: as many as allowed", testManyLinks},
		{"quiet trigger", testQuietTrigger},
		{"message does not wait for quiet", testQuietBesideOthers},
		{"change during delivery", testQuietWhileClaimed},
		{"change during delivery at MaxDelay", testQuietWhileClaimedLast},
		{"WriteOutbox", testWriteOutbox},
		{"WriteOutbox: concurrent calls", testWriteOutboxRace},
		{"Delete ends quiet triggers", testQuietDeleted},
		{"quiet trigger: concurrent changes", testQuietRace},
		{"backlogs up to a limit", testBacklogs},
		{"DeleteExpired", testExpired},
		{"expiry of not-found results and statuses", testExpiredWithoutContent},
		{"DeleteExpired: concurrent writes", testExpiredRace},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(suite{t, open(t)}) })
	}
	runCredits(t, open)
	runCollections(t, open)
	runMaintenance(t, open)
	runRuns(t, open)
}

// suite is one test with its store.
type suite struct {
	*testing.T
	store Store
}

var entity = schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}

// at returns a fixed base time plus the given seconds.
func at(seconds int64) time.Time { return time.Unix(1_800_000_000+seconds, 123_000).UTC() }

// content returns the write of a fetch with version n at time at(n). Its JSON contains the text.
func content(e schemas.Entity, n int64, text string) store.Write {
	json := []byte(`{"doc":"` + text + `"}`)
	return store.Write{
		Entity: e, Version: n, CheckedAt: at(n), Hash: sha256.Sum256(json), ExtractVersion: 7,
		ETag: `"` + text + `"`, LastModified: "then",
		Payload: func() (store.Payload, error) { return store.Encode(json), nil },
	}
}

func notFound(e schemas.Entity, n int64) store.Write {
	return store.Write{Entity: e, Kind: store.KindNotFound, Version: n, CheckedAt: at(n)}
}

func notModified(e schemas.Entity, n int64, text string) store.Write {
	w := content(e, n, text)
	w.Kind, w.Payload = store.NotModified, nil
	return w
}

// withoutPayload returns the write, which fails the test if the store encodes its payload.
func (b suite) withoutPayload(w store.Write) store.Write {
	w.Payload = func() (store.Payload, error) {
		b.Errorf("Payload of version %d was called", w.Version)
		return store.Payload{}, errors.New("unexpected call of Payload")
	}
	return w
}

// write writes the batch, and fails the test unless the results are equal to `want`.
func (b suite) write(want []store.Result, writes ...store.Write) {
	b.Helper()
	got, err := b.store.Write(b.Context(), writes)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		b.Fatalf("Write: got %v, %v, want %v", got, err, want)
	}
}

func one(r store.Result) []store.Result { return []store.Result{r} }

func (b suite) get(e schemas.Entity) store.Snapshot {
	b.Helper()
	s, err := b.store.Get(b.Context(), e)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// wantSnapshot fails the test unless the stored snapshot has this content, version and times. The
// times are given in seconds, as arguments of at.
func (b suite) wantSnapshot(e schemas.Entity, text string, version, fetched, checked, updated int64) {
	b.Helper()
	s := b.get(e)
	json := `{"doc":"` + text + `"}`
	got, err := s.Decode(nil)
	if err != nil || string(got) != json || s.Hash != sha256.Sum256([]byte(json)) || s.Size != len(json) {
		b.Fatalf("content: got %s, %v, size %d, want %s", got, err, s.Size, json)
	}
	if s.Entity != e || s.Version != version || s.NotFound ||
		!s.FetchedAt.Equal(at(fetched)) || !s.CheckedAt.Equal(at(checked)) || !s.UpdatedAt.Equal(at(updated)) {
		b.Fatalf("state: got %+v, want version %d, fetched %d, checked %d, updated %d", s.State, version, fetched, checked, updated)
	}
	states, err := b.store.States(b.Context(), []schemas.Entity{e})
	if err != nil || states[0] != s.State {
		b.Fatalf("States: got %+v, %v; Get has %+v", states, err, s.State)
	}
}

func testFirstWrite(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.wantSnapshot(entity, "x", 5, 5, 5, 5)
	s := b.get(entity)
	if s.ExtractVersion != 7 || s.Encoding != store.Zstd || s.ETag != `"x"` || s.LastModified != "then" || !s.HasContent() {
		b.Errorf("state: got %+v", s.State)
	}
}

func testTouch(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	before := b.get(entity).Payload
	for n := int64(6); n < 9; n++ {
		w := b.withoutPayload(content(entity, n, "x"))
		w.ETag = fmt.Sprint(n)
		b.write(one(store.Touched), w)
		b.wantSnapshot(entity, "x", n, n, n, 5)
		if got := b.get(entity); got.ETag != fmt.Sprint(n) || !bytes.Equal(got.Payload, before) {
			b.Errorf("after check %d: got %+v", n, got)
		}
	}
}

func testChange(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.write(one(store.Changed), content(entity, 6, "y"))
	b.wantSnapshot(entity, "y", 6, 6, 6, 6)
	b.write(one(store.Changed), content(entity, 7, "x"))
	b.wantSnapshot(entity, "x", 7, 7, 7, 7)
}

func testGuard(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	for _, w := range []store.Write{content(entity, 4, "y"), content(entity, 4, "x"), notFound(entity, 4)} {
		b.write(one(store.Superseded), w)
		b.wantSnapshot(entity, "x", 5, 5, 5, 5)
	}
	b.write(one(store.NotFoundStored), notFound(entity, 6))
	b.write(one(store.Superseded), content(entity, 5, "x"))
	if !b.get(entity).NotFound {
		b.Error("a write with a lower version replaced the not-found result")
	}
}

func testRepeat(b suite) {
	for range 3 {
		results, err := b.store.Write(b.Context(), []store.Write{content(entity, 5, "x")})
		if err != nil || results[0] == store.Superseded {
			b.Fatal(results, err)
		}
		b.wantSnapshot(entity, "x", 5, 5, 5, 5)
	}
	b.write(one(store.NotFoundStored), notFound(entity, 6))
	b.write(one(store.NotFoundStored), notFound(entity, 6))
}

func testNotModified(b suite) {
	b.write(one(store.BaseMissing), notModified(entity, 4, "x"))
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.write(one(store.Touched), notModified(entity, 6, "x"))
	b.wantSnapshot(entity, "x", 6, 5, 6, 5) // CheckedAt becomes 6, FetchedAt stays 5
	b.write(one(store.BaseMissing), notModified(entity, 7, "y"))
	b.wantSnapshot(entity, "x", 6, 5, 6, 5)
}

func testNotFound(b suite) {
	b.write(one(store.NotFoundStored), notFound(entity, 4))
	s := b.get(entity)
	if !s.NotFound || s.HasContent() || s.Payload != nil || !s.CheckedAt.Equal(at(4)) || !s.FetchedAt.IsZero() || !s.UpdatedAt.IsZero() {
		b.Errorf("snapshot after a not-found result: got %+v", s)
	}
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.wantSnapshot(entity, "x", 5, 5, 5, 5)
	b.write(one(store.NotFoundStored), notFound(entity, 6))
	if s := b.get(entity); !s.NotFound || !s.HasContent() || s.Version != 6 || !s.CheckedAt.Equal(at(6)) || !s.FetchedAt.Equal(at(5)) {
		b.Errorf("snapshot after a not-found result: got %+v", s)
	}
	b.write(one(store.Touched), b.withoutPayload(content(entity, 7, "x")))
	b.wantSnapshot(entity, "x", 7, 7, 7, 5)
}

func testRewrite(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	other := content(entity, 6, "y")
	other.ExtractVersion = 8
	b.write(one(store.Rewritten), other)
	b.wantSnapshot(entity, "y", 6, 6, 6, 5)
	same := content(entity, 7, "y") // the content that is stored now, but extracted with other settings of the facet (ExtractVersion 7, not 8)
	b.write(one(store.Rewritten), same)
	b.wantSnapshot(entity, "y", 7, 7, 7, 5)
}
