// Package peers compares the worker with the same job on job queues for Go: asynq (Redis) and river
// (PostgreSQL).
//
// The job of one event: fetch 17 KB of JSON over HTTP, check it, compute its SHA-256, compress it
// with zstd, and store it in PostgreSQL with an upsert. Each queue is used as its documentation
// recommends:
//
//   - Events are enqueued before the measurement, and not measured.
//   - 64 jobs run at once, on one pool of connections to the database and one HTTP client.
//   - asynq: Concurrency 64, one queue, the defaults otherwise.
//   - river: MaxWorkers 64, and the shortest FetchCooldown and FetchPollInterval, because with the
//     default of 100 ms the 64 workers wait for jobs. river completes jobs in batches by itself.
//
// freshet does more for each event: it canonicalises the content, gives each fetch a version, never
// stores an older result over a newer one, and merges requests for the same entity.
package peers
