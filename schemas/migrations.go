package schemas

import "embed"

// Migrations holds the SQL migrations in goose's format, in one folder for each database:
// migrations/postgres and migrations/sqlite. A release only adds to the schema. Parts that it no
// longer uses are removed one release later, so that two successive releases can share a database.
//
//go:embed migrations
var Migrations embed.FS
