// Package harness starts an installation of freshet on the real services. An installation (a
// [Site]) has its own database, topics and Redis, the simulator as its upstream, and one
// process for each role.
//
// The harness stops, kills and freezes these processes. It reads the counters that judge the
// result from Kafka, the database and the upstream, and never from freshet itself.
//
// The variables FRESHET_TEST_… have the addresses of PostgreSQL, Kafka and the Redis
// Cluster (scripts/services). Every function returns an error instead of ending a test,
// because the program in e2e/scenarios uses the package too.
package harness
