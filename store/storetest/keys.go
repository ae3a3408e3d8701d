package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/store"
)

// apiKey returns the API key with number n and the audit entry of its creation.
func apiKey(n int64) (store.APIKey, store.AuditEntry) {
	id := fmt.Sprintf("key-%d", n)
	k := store.APIKey{ID: id, Hash: sha256.Sum256([]byte(id)), Name: "é'" + id, Scopes: []string{"read", "refresh"}, CreatedAt: at(n), CreatedBy: "somebody"}
	if n%2 == 0 {
		k.ExpiresAt = at(1000 * n)
	}
	return k, keyEntry(id, "key-create", n)
}

func keyEntry(id, action string, n int64) store.AuditEntry {
	return store.AuditEntry{At: at(n), Actor: "somebody", Action: action, Before: []byte("{}"), After: []byte(`{"id":"` + id + `"}`)}
}

func (b suite) addKey(n int64) store.APIKey {
	b.Helper()
	k, entry := apiKey(n)
	if err := b.store.AddKey(b.Context(), k, entry); err != nil {
		b.Fatal(err)
	}
	return k
}

func (b suite) revokeKey(id string, when int64) error {
	return b.store.RevokeKey(b.Context(), id, "other", at(when), keyEntry(id, "key-revoke", when))
}

func (b suite) wantKeys(active bool, want ...store.APIKey) {
	b.Helper()
	got, err := b.store.Keys(b.Context(), active)
	if err != nil || len(got) != len(want) || (len(want) > 0 && !reflect.DeepEqual(got, want)) {
		b.Fatalf("Keys(%v): got %+v, %v, want %+v", active, got, err, want)
	}
}

func testKeysOfClients(b suite) {
	b.wantKeys(true)
	b.wantKeys(false)
	two, one, three := b.addKey(2), b.addKey(1), b.addKey(3)
	b.wantKeys(true, one, two, three)
	b.wantKeys(false, one, two, three)

	if err := b.revokeKey(two.ID, 50); err != nil {
		b.Fatal(err)
	}
	two.RevokedAt, two.RevokedBy = at(50), "other"
	b.wantKeys(true, one, three)
	b.wantKeys(false, one, two, three)

	for _, id := range []string{two.ID, "key-9", ""} {
		if err := b.revokeKey(id, 60); !errors.Is(err, store.ErrKeyNotFound) {
			b.Errorf("RevokeKey(%q): %v", id, err)
		}
	}
	b.wantKeys(false, one, two, three)
	if k, entry := apiKey(1); b.store.AddKey(b.Context(), k, entry) == nil {
		b.Error("AddKey accepted a duplicate ID")
	}
	all := b.audit(10)
	if len(all) != 4 || all[0].Action != "key-revoke" || all[0].Source != "" || string(all[0].After) != `{"id":"key-2"}` || all[3].Action != "key-create" {
		b.Errorf("audit: got %+v", all)
	}
}

// testKeyRevokedOnce revokes one key in several concurrent calls: only one of them succeeds.
func testKeyRevokedOnce(b suite) {
	k := b.addKey(1)
	var done atomic.Int64
	var wg sync.WaitGroup
	for n := range int64(6) {
		wg.Go(func() {
			switch err := b.revokeKey(k.ID, n); {
			case err == nil:
				done.Add(1)
			case !errors.Is(err, store.ErrKeyNotFound):
				b.Error(err)
			}
		})
	}
	wg.Wait()
	all, err := b.store.Keys(b.Context(), false)
	if err != nil || done.Load() != 1 || len(b.audit(10)) != 2 || len(all) != 1 || all[0].RevokedAt.After(at(5)) || all[0].RevokedAt.Equal(time.Time{}) {
		b.Errorf("successful revocations: got %d, want 1; %+v, %v", done.Load(), all, err)
	}
}
