// Package storetest is the suite that every store passes.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store is what a store must be able to do. A caller that needs less declares
// less.
type Store interface {
	// Get returns an entity's snapshot, or store.ErrNotFound.
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	// GetAll returns the snapshots in the order of the entities, which may repeat;
	// Version is 0 where nothing is stored.
	GetAll(ctx context.Context, entities []schemas.Entity) ([]store.Snapshot, error)
	// States returns the states in the order of the entities; Version is 0 where
	// nothing is stored.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	// Write writes all of the writes or, with an error, none.
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
	// Delete removes what is stored of an entity, if anything.
	Delete(ctx context.Context, e schemas.Entity) error
	// DeleteSnapshot deletes all that is stored of an entity but dead letters and effects,
	// and its registration, and writes the entry, or neither; was says if there was any.
	DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (was bool, err error)
	Ping(ctx context.Context) error
	// Setting returns what was changed of a source; Revision is 0 if nothing was.
	Setting(ctx context.Context, source string) (store.Setting, error)
	// ChangeSetting writes both or, with store.ErrConflict for a revision that is
	// not the one above the stored one, or another error, neither.
	ChangeSetting(ctx context.Context, setting store.Setting, entry store.AuditEntry) error
	// Audit returns the newest entries, the newest first, limit of them at most.
	Audit(ctx context.Context, limit int) ([]store.AuditEntry, error)
	// WriteAudit writes one entry into the audit.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
	// Keys returns all API keys, or those that are not revoked, the oldest first.
	Keys(ctx context.Context, live bool) ([]store.APIKey, error)
	// AddKey writes both or, with an error, neither.
	AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error
	// RevokeKey writes both or, with store.ErrKeyNotFound for a key that there is none of
	// or that is revoked, or another error, neither.
	RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error
	// Used returns the newest count of a policy; zero if there is none.
	Used(ctx context.Context, source, policy string) (store.Usage, error)
	// SetUsed writes a count, unless it is of an earlier day, or a lower one of
	// the same day.
	SetUsed(ctx context.Context, source, policy string, u store.Usage) error
	// Statuses returns the statuses in the order of the entities; State is empty
	// where there is none.
	Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error)
	// WriteFailure writes both or, with an error, neither; the status is passed over if a
	// later fetch has stored its success or its failure. Without a State only the
	// letter is written, without a letter only the status.
	WriteFailure(ctx context.Context, status store.Status, letter *store.DeadLetter) error
	// ClaimRetries claims retries until now and the lease, earliest first, limit of them at
	// most; no two calls claim the same one before that.
	ClaimRetries(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error)
	// NextRetryTime returns when the next retry is due; zero if there is none.
	NextRetryTime(ctx context.Context, source string) (time.Time, error)
	DeadLetters
	Entities
	Outbox
}

// Run runs the suite; each test gets an empty store from open.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for _, test := range []struct {
		name string
		run  func(b suite)
	}{
		{"nothing is known of an entity that was never written", testUnknown},
		{"many are read at once, in the order in which they are asked for", testGetAll},
		{"a first write is read back whole", testFirstWrite},
		{"an unchanged check writes times and version and no payload", testTouch},
		{"a change replaces content and hash", testChange},
		{"a later fetch is never overwritten by an earlier one", testGuard},
		{"a write repeated changes nothing", testRepeat},
		{"an answer not modified needs the state it refers to", testNotModified},
		{"an absence is recorded and keeps the content", testAbsence},
		{"other settings of the same entity are no change", testRewrite},
		{"a row is seen by those whom its last fetch was for", testVisibility},
		{"an absence for some leaves nothing of what others saw", testVisibilityOfAbsence},
		{"what is stored at once for several is never mixed", testVisibilityRace},
		{"a batch is written whole or not at all", testAtomic},
		{"of two results for one entity in a batch the later wins", testDuplicates},
		{"keys of every kind are kept apart", testKeys},
		{"a deleted entity is unknown again", testDelete},
		{"what is deleted by a person goes whole, and the audit says so", testDeleteSnapshot},
		{"what is stored while it is deleted is whole or gone", testDeleteRace},
		{"an act is noted by itself", testWriteAudit},
		{"a cancelled call fails", testCancelled},
		{"random writes end as the model says", testModel},
		{"concurrent batches neither block nor lose", testConcurrent},
		{"a setting is as it was changed last", testSetting},
		{"every change is in the audit, the newest first", testAudit},
		{"a change of another revision leaves no trace", testSettingGuard},
		{"of concurrent changes each revision is written by one", testSettingRace},
		{"API keys are listed until they are revoked, and then with who did", testKeysOfClients},
		{"of concurrent revocations one is made", testKeyRevokedOnce},
		{"a day's count never goes back", testUsage},
		{"concurrent counts end at the greatest", testUsageRace},
		{"a status is that of the latest failed fetch", testStatus},
		{"what is stored ends an earlier failure, however late that is written", testSuccessEndsFailure},
		{"nothing else ends a failure", testFailureSurvivesOtherWrites},
		{"of a failure and a success at once the later fetch wins", testFailureRace},
		{"a failure writes no state, and is deleted with its entity", testFailureAlone},
		{"texts of every kind are kept as far as can be", testHostileFailure},
		{"a retry is claimed when it is due, and again when the claim ends", testClaimRetries},
		{"of concurrent claims each retry goes to one", testClaimRetriesRace},
		{"letters are listed until they are handled", testDeadLetters},
		{"dead letters are listed and counted within visibilities", testDeadLetterVisibility},
		{"letters are chosen by every filter, and page by page", testDeadLetterFilter},
		{"letters are counted by what went wrong", testDeadLetterGroups},
		{"what is handled from the beginning is known, and forgotten when it is gone", testHandledPrefixes},
		{"a job is worked on by one at a time, and goes on where it was", testJobs},
		{"a replay that was stopped in a chunk lives until it is known what it asked for", testReplayStoppedInChunk},
		{"of replays of a source that are resumed at once one goes on", testResumeRace},
		{"of those who take on a job at once one gets it", testJobRace},
		{"an entity that is registered again keeps what was seen of it", testRegister},
		{"thousands are registered and switched at once", testRegisterMany},
		{"entities are chosen by every filter, page by page", testEntityFilter},
		{"a person takes entities out of the schedule and puts them back", testEnable},
		{"entities are pinned to a tier, and keep it when they are unpinned", testPin},
		{"reads are counted, and register what is unknown", testReads},
		{"whoever writes entities at once waits for nobody in a circle", testEntityWritesNoDeadlock},
		{"what is due is claimed, the earliest first", testClaim},
		{"what is read more and more is due at once", testRefreshNow},
		{"the params that entities are registered with are found", testEntityParams},
		{"what is stored of what is due is read where it is wanted", testClaimedContent},
		{"who decides is told all that is known, and what it says is kept", testDecide},
		{"a claim that asks for nothing is none", testClaimWithoutRequests},
		{"a claimant that dies has claimed nothing", testClaimRolledBack},
		{"a claim that is abandoned is taken over, and its holder knows", testTakeOverClaim},
		{"an abandoned claim is taken over by one", testTakeOverRace},
		{"of concurrent schedulers one claims each due time", testClaimRace},
		{"what is due later is read, the earliest first, and brought forward", testBringForward},
		{"a price is set once in an interval", testPrice},
		{"what follows from a change is written down with it, and from nothing else", testOutbox},
		{"what was to follow from a write that failed is forgotten with it", testOutboxOfFailedWrite},
		{"of an effect that was told its triggers remain", testMarkChangesPublished},
		{"an effect is claimed, and again when the claim ends, until it is finished", testOutboxClaim},
		{"of concurrent claims each effect goes to one", testOutboxClaimRace},
		{"of concurrent writers each change has one effect, and these are an unbroken chain", testOutboxHashChain},
		{"changes that follow each other have one effect, when they pause", testQuietTrigger},
		{"a message and other triggers do not wait for quiet", testQuietBesideOthers},
		{"a change stored while its effect is carried out has one of its own", testQuietWhileClaimed},
		{"a deleted entity waits for no quiet", testQuietDeleted},
		{"of concurrent changes and claims none is forgotten", testQuietRace},
		{"what is due is counted, up to a bound", testBacklogs},
		{"what was kept too long is deleted, and nothing else", testExpired},
		{"absences and statuses of nothing stored have times of their own", testExpiredWithoutContent},
		{"what is fetched while others delete is kept whole", testExpiredRace},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(suite{t, open(t)}) })
	}
}

// suite is one store under test.
type suite struct {
	*testing.T
	store Store
}

var entity = schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}

// at returns the time a number of seconds after a fixed one.
func at(seconds int64) time.Time { return time.Unix(1_800_000_000+seconds, 123_000).UTC() }

// content is a fetch of number and time n that found text.
func content(e schemas.Entity, n int64, text string) store.Write {
	json := []byte(`{"doc":"` + text + `"}`)
	return store.Write{
		Entity: e, Version: n, CheckedAt: at(n), Hash: sha256.Sum256(json), ExtractVersion: 7,
		ETag: `"` + text + `"`, LastModified: "then",
		Payload: func() (store.Payload, error) { return store.Encode(json), nil },
	}
}

func absence(e schemas.Entity, n int64) store.Write {
	return store.Write{Entity: e, Kind: store.Absence, Version: n, CheckedAt: at(n)}
}

func notModified(e schemas.Entity, n int64, text string) store.Write {
	w := content(e, n, text)
	w.Kind, w.Payload = store.NotModified, nil
	return w
}

// withoutPayload fails the test if the payload is asked for.
func (b suite) withoutPayload(w store.Write) store.Write {
	w.Payload = func() (store.Payload, error) {
		b.Errorf("the payload of version %d was asked for", w.Version)
		return store.Payload{}, errors.New("not to be asked for")
	}
	return w
}

// write writes and expects the results.
func (b suite) write(want []store.Result, writes ...store.Write) {
	b.Helper()
	got, err := b.store.Write(b.Context(), writes)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		b.Fatalf("write gave %v, %v; want %v", got, err, want)
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

// wantSnapshot fails the test unless the snapshot has the content and these times, given as
// numbers for at.
func (b suite) wantSnapshot(e schemas.Entity, text string, version, fetched, checked, updated int64) {
	b.Helper()
	s := b.get(e)
	json := `{"doc":"` + text + `"}`
	got, err := s.Decode(nil)
	if err != nil || string(got) != json || s.Hash != sha256.Sum256([]byte(json)) || s.Size != len(json) {
		b.Fatalf("content %s, %v, size %d; want %s", got, err, s.Size, json)
	}
	if s.Entity != e || s.Version != version || s.Absent ||
		!s.FetchedAt.Equal(at(fetched)) || !s.CheckedAt.Equal(at(checked)) || !s.UpdatedAt.Equal(at(updated)) {
		b.Fatalf("%+v; want version %d, fetched %d, checked %d, updated %d", s.State, version, fetched, checked, updated)
	}
	states, err := b.store.States(b.Context(), []schemas.Entity{e})
	if err != nil || states[0] != s.State {
		b.Fatalf("the state alone is %+v, %v; with its payload %+v", states, err, s.State)
	}
}

func testFirstWrite(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.wantSnapshot(entity, "x", 5, 5, 5, 5)
	s := b.get(entity)
	if s.ExtractVersion != 7 || s.Encoding != store.Zstd || s.ETag != `"x"` || s.LastModified != "then" || !s.HasContent() {
		b.Errorf("%+v", s.State)
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
			b.Errorf("after check %d: %+v", n, got)
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
	for _, w := range []store.Write{content(entity, 4, "y"), content(entity, 4, "x"), absence(entity, 4)} {
		b.write(one(store.Superseded), w)
		b.wantSnapshot(entity, "x", 5, 5, 5, 5)
	}
	b.write(one(store.AbsenceStored), absence(entity, 6))
	b.write(one(store.Superseded), content(entity, 5, "x"))
	if !b.get(entity).Absent {
		b.Error("an older answer brought the entity back")
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
	b.write(one(store.AbsenceStored), absence(entity, 6))
	b.write(one(store.AbsenceStored), absence(entity, 6))
}

func testNotModified(b suite) {
	b.write(one(store.BaseMissing), notModified(entity, 4, "x"))
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.write(one(store.Touched), notModified(entity, 6, "x"))
	b.wantSnapshot(entity, "x", 6, 5, 6, 5) // checked, but not fetched
	b.write(one(store.BaseMissing), notModified(entity, 7, "y"))
	b.wantSnapshot(entity, "x", 6, 5, 6, 5)
}

func testAbsence(b suite) {
	b.write(one(store.AbsenceStored), absence(entity, 4))
	s := b.get(entity)
	if !s.Absent || s.HasContent() || s.Payload != nil || !s.CheckedAt.Equal(at(4)) || !s.FetchedAt.IsZero() || !s.UpdatedAt.IsZero() {
		b.Errorf("%+v", s)
	}
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.wantSnapshot(entity, "x", 5, 5, 5, 5)
	b.write(one(store.AbsenceStored), absence(entity, 6))
	if s := b.get(entity); !s.Absent || !s.HasContent() || s.Version != 6 || !s.CheckedAt.Equal(at(6)) || !s.FetchedAt.Equal(at(5)) {
		b.Errorf("%+v", s)
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
	same := content(entity, 7, "y") // by the old settings again, with the same outcome
	b.write(one(store.Rewritten), same)
	b.wantSnapshot(entity, "y", 7, 7, 7, 5)
}

func testAtomic(b suite) {
	e := func(key string) schemas.Entity { return schemas.Entity{Source: "nexon", Facet: "character", Key: key} }
	b.write([]store.Result{store.Changed, store.AbsenceStored}, content(e("old"), 1, "x"), absence(e("gone"), 1))
	failing := content(e("b"), 2, "x")
	failing.Payload = func() (store.Payload, error) { return store.Payload{}, errors.New("no memory") }
	_, err := b.store.Write(b.Context(), []store.Write{
		content(e("a"), 2, "x"), failing, content(e("c"), 2, "x"), content(e("old"), 2, "x"), absence(e("gone"), 2),
	})
	if err == nil || !strings.Contains(err.Error(), "no memory") {
		b.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if _, err := b.store.Get(b.Context(), e(key)); !errors.Is(err, store.ErrNotFound) {
			b.Errorf("%s: %v", key, err)
		}
	}
	b.wantSnapshot(e("old"), "x", 1, 1, 1, 1)
	if v := b.get(e("gone")).Version; v != 1 {
		b.Errorf("the absence has version %d", v)
	}
}

func testCancelled(b suite) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if _, err := b.store.Get(ctx, entity); err == nil || errors.Is(err, store.ErrNotFound) {
		b.Errorf("Get: %v", err)
	}
	if _, err := b.store.GetAll(ctx, []schemas.Entity{entity}); err == nil {
		b.Error("GetAll succeeded")
	}
	if _, err := b.store.Write(ctx, []store.Write{content(entity, 5, "x")}); err == nil {
		b.Error("Write succeeded")
	}
	if _, err := b.store.Setting(ctx, "nexon"); err == nil {
		b.Error("Setting succeeded")
	}
	if _, err := b.store.Used(ctx, "nexon", "day"); err == nil {
		b.Error("Used succeeded")
	}
	if setting, entry := change("nexon", 1); b.store.ChangeSetting(ctx, setting, entry) == nil {
		b.Error("ChangeSetting succeeded")
	}
	l := newDeadLetter(entity, 1)
	if b.store.WriteFailure(ctx, failing(entity, 5), &l) == nil {
		b.Error("Fail succeeded")
	}
	if _, err := b.store.Statuses(ctx, []schemas.Entity{entity}); err == nil {
		b.Error("Statuses succeeded")
	}
	if _, err := b.store.NextRetryTime(ctx, "nexon"); err == nil {
		b.Error("NextDue succeeded")
	}
	if _, err := b.store.DeadLetters(ctx, store.DeadLetterFilter{Source: "nexon"}, store.DeadLetter{}, 1); err == nil {
		b.Error("Letters succeeded")
	}
	b.hasNoStatus(entity)
	b.fail(failing(entity, 5))
	b.deadLetter(l)
	if _, err := b.store.ClaimRetries(ctx, "nexon", at(9), time.Second, 1); err == nil {
		b.Error("Due succeeded")
	}
	if err := b.store.CreateJob(ctx, job(1), auditEntry("a")); err == nil {
		b.Error("CreateJob succeeded")
	}
	b.hasStatus(failing(entity, 5))
	if all := b.deadLetters("nexon", true, 9); len(all) != 1 {
		b.Errorf("%+v", all)
	}
	testUnknown(b)
}
