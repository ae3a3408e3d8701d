package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	_ "github.com/jackc/pgx/v5/stdlib" // registers the database/sql driver that goose uses
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/freshet/freshet/schemas"
)

// Migration is a schema migration. Applied reports whether it was applied to the database.
type Migration struct {
	Version int64
	Name    string
	Applied bool
}

// Migrate applies the migrations of this release that the database lacks, and returns them. `url` must
// be a direct connection, not PgBouncer in transaction mode, because a session lock prevents
// concurrent migrations.
func Migrate(ctx context.Context, url string) ([]Migration, error) {
	var applied []Migration
	err := withProvider(url, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		for _, r := range results {
			applied = append(applied, Migration{r.Source.Version, r.Source.Path, true})
		}
		return err
	})
	return applied, err
}

// Migrations returns all migrations of this release and whether each is applied.
func Migrations(ctx context.Context, url string) ([]Migration, error) {
	var all []Migration
	err := withProvider(url, func(p *goose.Provider) error {
		status, err := p.Status(ctx)
		for _, s := range status {
			all = append(all, Migration{s.Source.Version, s.Source.Path, s.State == goose.StateApplied})
		}
		return err
	})
	return all, err
}

func withProvider(url string, do func(*goose.Provider) error) (err error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return fmt.Errorf("database.directURL: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	scripts, err := fs.Sub(schemas.Migrations, "migrations/postgres")
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, scripts, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	if err := do(p); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}
