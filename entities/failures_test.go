package entities

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// brokenStore is a store in which one method fails.
type brokenStore struct {
	Store
	StateReader
	method string
}

func (s *brokenStore) errorOf(method string) error {
	if s.method == method {
		return errDown
	}
	return nil
}

func (s *brokenStore) BringForward(ctx context.Context, all []prefetched.DueTime) error {
	return errors.Join(s.errorOf("BringForward"), s.Store.BringForward(ctx, all))
}

func (s *brokenStore) PinEntities(ctx context.Context, of []schemas.Entity, tier prefetched.Tier) (int, error) {
	if err := s.errorOf("PinEntities"); err != nil {
		return 0, err
	}
	return s.Store.PinEntities(ctx, of, tier)
}

func (s *brokenStore) UnpinEntities(ctx context.Context, of []schemas.Entity) (int, error) {
	if err := s.errorOf("UnpinEntities"); err != nil {
		return 0, err
	}
	return s.Store.UnpinEntities(ctx, of)
}

func (s *brokenStore) Entities(ctx context.Context, f prefetched.Filter, after schemas.Entity, limit int) ([]prefetched.RegisteredEntity, error) {
	if err := s.errorOf("Entities"); err != nil {
		return nil, err
	}
	return s.Store.Entities(ctx, f, after, limit)
}

func (s *brokenStore) CountEntities(ctx context.Context, f prefetched.Filter) (int64, bool, error) {
	if err := s.errorOf("CountEntities"); err != nil {
		return 0, false, err
	}
	return s.Store.CountEntities(ctx, f)
}

func (s *brokenStore) EnableEntities(ctx context.Context, f prefetched.Filter, keys []string, enabled bool) (int, error) {
	if err := s.errorOf("EnableEntities"); err != nil {
		return 0, err
	}
	return s.Store.EnableEntities(ctx, f, keys, enabled)
}

func (s *brokenStore) ObserveReads(ctx context.Context, reads []prefetched.EntityReads, risen prefetched.RefreshNowFunc) error {
	if err := s.errorOf("ObserveReads"); err != nil {
		return err
	}
	return s.Store.ObserveReads(ctx, reads, risen)
}

func (s *brokenStore) DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (bool, error) {
	if err := s.errorOf("DeleteSnapshot"); err != nil {
		return false, err
	}
	return s.Store.DeleteSnapshot(ctx, e, entry)
}

func (s *brokenStore) WriteAudit(ctx context.Context, entry store.AuditEntry) error {
	if err := s.errorOf("WriteAudit"); err != nil {
		return err
	}
	return s.Store.WriteAudit(ctx, entry)
}

func (s *brokenStore) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	if err := s.errorOf("Get"); err != nil {
		return store.Snapshot{}, err
	}
	return s.StateReader.Get(ctx, e)
}

func (s *brokenStore) Statuses(ctx context.Context, of []schemas.Entity) ([]store.Status, error) {
	if err := s.errorOf("Statuses"); err != nil {
		return nil, err
	}
	return s.StateReader.Statuses(ctx, of)
}

// If a method of the store fails, the response to each request must be 503. It must not contain details
// of the error. No process may be notified, and every change must have an audit entry.
func TestHandler_StoreFailures(t *testing.T) {
	const (
		pin      = `{"source":"nexon","facet":"a","tier":"hot","keys":["ac"]}`
		unpin    = `{"source":"nexon","facet":"a","keys":["ac"]}`
		filter   = `{"source":"nexon"}`
		register = `{"source":"nexon","facet":"a","entities":[{"key":"ac","tier":"hot"}]}`
	)
	for _, c := range []struct{ failing, method, path, body string }{
		{"Entities", http.MethodGet, "/entities", ""},
		{"CountEntities", http.MethodGet, "/entities/count", ""},
		{"WriteAudit", http.MethodPost, "/entities/enable", unpin},
		{"EnableEntities", http.MethodPost, "/entities/enable", unpin},
		{"Entities", http.MethodPost, "/entities/disable", filter},
		{"WriteAudit", http.MethodPost, "/entities/disable", filter},
		{"EnableEntities", http.MethodPost, "/entities/disable", filter},
		{"WriteAudit", http.MethodPost, "/entities/pin", pin},
		{"PinEntities", http.MethodPost, "/entities/pin", pin},
		{"BringForward", http.MethodPost, "/entities/pin", pin},
		{"WriteAudit", http.MethodPost, "/entities/unpin", unpin},
		{"UnpinEntities", http.MethodPost, "/entities/unpin", unpin},
		{"WriteAudit", http.MethodPost, "/entities", register},
		{"BringForward", http.MethodPost, "/entities", register},
		{"DeleteSnapshot", http.MethodDelete, "/snapshots/nexon/a/ac", ""},
		{"Entities", http.MethodGet, "/snapshots/nexon/a/ac", ""},
		{"Get", http.MethodGet, "/snapshots/nexon/a/ac", ""},
		{"Statuses", http.MethodGet, "/snapshots/nexon/a/ac", ""},
	} {
		r := newRig(t)
		r.fill()
		before := r.ok(http.MethodGet, "/entities", "").text
		broken := &brokenStore{Store: r.Store, StateReader: r.States, method: c.failing}
		r.Store, r.States = broken, broken
		if a := r.do(c.method, c.path, c.body); a.status != http.StatusServiceUnavailable || a.Code != "store-unavailable" || strings.Contains(a.text, "secret") {
			t.Errorf("%s %s, %s fails: got %d %s, want 503 store-unavailable without details", c.method, c.path, c.failing, a.status, a.text)
		}
		if len(r.notified) != 0 {
			t.Errorf("%s %s, %s fails: got the notifications %q, want none", c.method, c.path, c.failing, r.notified)
		}
		broken.method = ""
		if after := r.ok(http.MethodGet, "/entities", "").text; c.failing == "WriteAudit" && after != before {
			t.Errorf("%s %s without an audit entry: got %s, want no change from %s", c.method, c.path, after, before)
		}
	}
}

func TestRecordReads_NotifiesOnlyAfterTheStore(t *testing.T) {
	r := newRig(t)
	broken := &brokenStore{Store: r.Store, method: "ObserveReads"}
	r.Store = broken
	reads := []ReadCount{{Entity: schemas.Entity{Source: "nexon", Facet: "a", Key: "x"}, Count: 1}}
	if err := r.RecordReads(t.Context(), reads, start.Add(time.Second)); !errors.Is(err, errDown) || len(r.notified) != 0 {
		t.Errorf("store fails: got %v and the notifications %q, want %v and none", err, r.notified, errDown)
	}
	broken.method = ""
	if err := r.RecordReads(t.Context(), reads, start.Add(time.Second)); err != nil || len(r.notified) != 1 {
		t.Errorf("got %v and the notifications %q, want one", err, r.notified)
	}
}
