package schemas

import "embed"

// Migrations holds the SQL migrations in goose's format, in one folder for each database:
// migrations/postgres and migrations/sqlite. A migration expands the schema first and removes old
// parts one release later, so that two releases can share a database.
//
//go:embed migrations
var Migrations embed.FS
