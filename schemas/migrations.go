package schemas

import "embed"

// Migrations holds the SQL migrations in goose's format, one folder a dialect:
// migrations/postgres and migrations/sqlite. They expand first and contract a
// release later, so that two releases can run on one schema.
//
//go:embed migrations
var Migrations embed.FS
