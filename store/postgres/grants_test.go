package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
)

// template is a migrated database with the roles of docs/deploying.md. Roles are global to a
// database server, so their names begin with a unique prefix.
var (
	rolePrefix = strings.ReplaceAll(servicetest.Name("role"), "-", "_") + "_"
	template   = servicetest.PostgresTemplate{Prepare: func(ctx context.Context, url string) error {
		if _, err := Migrate(ctx, url); err != nil {
			return err
		}
		statements, err := grants()
		if err != nil {
			return err
		}
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		_, err = conn.PgConn().Exec(ctx, strings.ReplaceAll(statements, "freshet_", rolePrefix)).ReadAll()
		return err
	}}
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := template.Drop("DROP ROLE " + rolePrefix + "query, " + rolePrefix + "worker, " + rolePrefix + "scheduler"); err != nil {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

// grants returns the statements of docs/deploying.md that create the roles.
func grants() (string, error) {
	text, err := os.ReadFile("../../docs/deploying.md")
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile("(?s)```sql\n(CREATE ROLE freshet_query .*?)```").FindSubmatch(text)
	if found == nil {
		return "", errors.New("docs/deploying.md has no statements that create the roles")
	}
	return string(found[1]), nil
}

// byRole is a store that calls each method with the database role of the process that uses it. The
// embedded Store has the role of the query service.
type byRole struct {
	*Store
	tokenStore        // with the role of the worker
	worker, scheduler *Store
}

// openByRole opens a new database with each of the roles of docs/deploying.md.
func openByRole(t testing.TB) byRole {
	t.Helper()
	admin := servicetest.PostgresCopy(t, &template)
	as := func(role, password string) *Store {
		u, err := url.Parse(admin)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(rolePrefix+role, password)
		s, err := Open(t.Context(), u.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	worker := as("worker", "another")
	return byRole{Store: as("query", "one"), tokenStore: worker.tokenStore, worker: worker, scheduler: as("scheduler", "a third")}
}

func (r byRole) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	return r.worker.Write(ctx, writes)
}

// WorkerTx returns transactions with the database role of a worker. Package storetest writes
// collections with it. Credits are written with the role of the query service.
func (r byRole) WorkerTx() collection.Store { return r.worker }

// SchedulerTx returns transactions with the database role of a scheduler, which deletes old rows.
func (r byRole) SchedulerTx() retention.TxStore { return r.scheduler }

func (r byRole) WriteFailure(ctx context.Context, status store.Status, deadLetter *deadletters.DeadLetter) error {
	return r.worker.WriteFailure(ctx, status, deadLetter)
}

func (r byRole) ClaimRetries(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error) {
	return r.worker.ClaimRetries(ctx, source, now, lease, limit)
}

func (r byRole) NextRetryTime(ctx context.Context, source string) (time.Time, error) {
	return r.worker.NextRetryTime(ctx, source)
}

func (r byRole) ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.OutboxEvent, error) {
	return r.worker.ClaimOutboxEvents(ctx, source, now, lease, limit)
}

func (r byRole) NextOutboxTime(ctx context.Context, source string) (time.Time, error) {
	return r.worker.NextOutboxTime(ctx, source)
}

func (r byRole) MarkChangesPublished(ctx context.Context, ids []int64) error {
	return r.worker.MarkChangesPublished(ctx, ids)
}

func (r byRole) DeleteOutboxEvents(ctx context.Context, ids []int64) error {
	return r.worker.DeleteOutboxEvents(ctx, ids)
}

func (r byRole) EntityParams(ctx context.Context, keys []schemas.Entity) ([]map[string]string, error) {
	return r.worker.EntityParams(ctx, keys)
}

func (r byRole) SetUsed(ctx context.Context, source, policy string, u store.Usage) error {
	return r.worker.SetUsed(ctx, source, policy, u)
}

func (r byRole) ClaimEntities(ctx context.Context, source string, now time.Time, limit int, lease time.Duration,
	content func(facet string) bool, decide func(prefetched.Candidate) prefetched.Decision,
) (prefetched.Claim, error) {
	return r.scheduler.ClaimEntities(ctx, source, now, limit, lease, content, decide)
}

func (r byRole) EntitiesDueAfter(ctx context.Context, source string, after time.Time, limit int, content func(facet string) bool) ([]prefetched.Candidate, error) {
	return r.scheduler.EntitiesDueAfter(ctx, source, after, limit, content)
}

func (r byRole) BringForward(ctx context.Context, all []prefetched.DueTime) error {
	// The query service calls BringForward too, for pinned entities.
	if err := r.Store.BringForward(ctx, all[:min(len(all), 1)]); err != nil {
		return err
	}
	return r.scheduler.BringForward(ctx, all)
}

func (r byRole) FinishClaim(ctx context.Context, id string) error {
	return r.scheduler.FinishClaim(ctx, id)
}

func (r byRole) RenewClaim(ctx context.Context, id string, until time.Time) (bool, error) {
	return r.scheduler.RenewClaim(ctx, id, until)
}

func (r byRole) TakeOverClaim(ctx context.Context, source string, now time.Time, lease time.Duration) (prefetched.Claim, bool, error) {
	return r.scheduler.TakeOverClaim(ctx, source, now, lease)
}

func (r byRole) NextEntityTime(ctx context.Context, source string) (time.Time, error) {
	return r.scheduler.NextEntityTime(ctx, source)
}

func (r byRole) SetPrice(ctx context.Context, source string, price float64, at time.Time, minInterval time.Duration) (bool, error) {
	return r.scheduler.SetPrice(ctx, source, price, at, minInterval)
}

func (r byRole) Price(ctx context.Context, source string) (float64, time.Time, error) {
	return r.scheduler.Price(ctx, source)
}

func (r byRole) DeleteExpired(ctx context.Context, source, facet string, content, notFound time.Time, limit int) (int, bool, error) {
	return r.scheduler.DeleteExpired(ctx, source, facet, content, notFound, limit)
}

func (r byRole) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (int, bool, error) {
	return r.scheduler.DeleteOldStatuses(ctx, source, facet, before, limit)
}

// Every process calls the methods Statuses, States, Setting, Used and NextLeaseEnd, so every role
// must be allowed to read their tables.
func TestGrants_AllowCommonReads(t *testing.T) {
	all := openByRole(t)
	e := []schemas.Entity{{Source: "s", Facet: "f", Key: "k"}}
	for role, s := range map[string]*Store{"query": all.Store, "worker": all.worker, "scheduler": all.scheduler} {
		_, statuses := s.Statuses(t.Context(), e)
		_, states := s.States(t.Context(), e)
		_, setting := s.Setting(t.Context(), "s")
		_, used := s.Used(t.Context(), "s", "p")
		_, job := s.NextLeaseEnd(t.Context(), nil)
		if err := errors.Join(statuses, states, setting, used, job); err != nil {
			t.Errorf("%s: got %v, want no error", role, err)
		}
	}
}

func TestGrants_KeepWorkersFromAPIKeys(t *testing.T) {
	all := openByRole(t)
	key := store.APIKey{ID: "0123456789ab", Hash: [32]byte{1}, Name: "mine", Scopes: []string{"admin"}, CreatedAt: time.Unix(1, 0), CreatedBy: "worker"}
	entry := store.AuditEntry{At: time.Unix(1, 0), Actor: "worker", Action: "key-create", Before: []byte("{}"), After: []byte("{}")}
	for role, s := range map[string]*Store{"worker": all.worker, "scheduler": all.scheduler} {
		_, read := s.Keys(t.Context(), false)
		_, insert := s.pool.Exec(t.Context(), `INSERT INTO api_keys SELECT * FROM api_keys`)
		_, trail := s.pool.Exec(t.Context(), `UPDATE audit SET actor = ''`)
		for what, err := range map[string]error{
			"read the keys": read, "insert a key": insert, "add a key": s.AddKey(t.Context(), key, entry), "change the audit": trail,
			"revoke a key": s.RevokeKey(t.Context(), key.ID, "worker", time.Unix(2, 0), entry), "write the audit": s.WriteAudit(t.Context(), entry),
		} {
			if denied, ok := errors.AsType[*pgconn.PgError](err); !ok || denied.Code != "42501" {
				t.Errorf("%s: %s: got %v, want permission denied (42501)", role, what, err)
			}
		}
	}
	if err := all.AddKey(t.Context(), key, entry); err != nil {
		t.Errorf("query: add a key: got %v, want no error", err)
	}
}

// Only the role of schedulers may delete entries of the audit, and only old entries.
func TestGrants_KeepTheAudit(t *testing.T) {
	all := openByRole(t)
	for _, age := range []time.Duration{7 * 24 * time.Hour, 9 * 24 * time.Hour} {
		entry := store.AuditEntry{At: time.Now().Add(-age), Actor: "somebody", Action: "set", Before: []byte("{}"), After: []byte("{}")}
		if err := all.WriteAudit(t.Context(), entry); err != nil {
			t.Fatal(err)
		}
	}
	for role, s := range map[string]*Store{"query": all.Store, "worker": all.worker} {
		if _, err := s.pool.Exec(t.Context(), `DELETE FROM audit`); err == nil {
			t.Errorf("%s: delete the audit: got no error, want permission denied", role)
		}
	}
	tag, err := all.scheduler.pool.Exec(t.Context(), `DELETE FROM audit`)
	if err != nil || tag.RowsAffected() != 1 {
		t.Errorf("scheduler: delete the audit: got %v, %v, want 1 deleted row", tag, err)
	}
	if left, err := all.Audit(t.Context(), 10); err != nil || len(left) != 1 || time.Since(left[0].At) > 8*24*time.Hour {
		t.Errorf("entries: got %+v, %v, want the younger one", left, err)
	}
}

// Every table must occur in the grants of docs/deploying.md. If a table is missing there,
// installations with separate roles fail after the next upgrade.
func TestGrants_NameEveryTable(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), servicetest.PostgresCopy(t, &template))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	rows, err := conn.Query(t.Context(), `SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(tables) < 10 {
		t.Fatalf("got %d tables, want at least 10", len(tables))
	}
	statements, err := grants()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if table != "goose_db_version" && !regexp.MustCompile(`\b`+table+`\b`).MatchString(statements) {
			t.Errorf("the grants of docs/deploying.md do not name the table %s, want it", table)
		}
	}
}
