// Package harness starts an installation of freshet on the real services: a database,
// topics and a Redis of its own, the simulator as its upstream, and a process for each
// role. It stops, kills and freezes them, and reads the counters by which a test or a
// scenario judges them: Kafka's, the database's and the upstream's own.
//
// The variables FRESHET_TEST_… have the addresses of PostgreSQL, Kafka and the Redis
// Cluster (scripts/services). Every function returns an error, so that both tests and the
// program in e2e/scenarios use it.
package harness
