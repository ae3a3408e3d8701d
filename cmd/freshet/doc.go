// Command freshet keeps local snapshots of data fresh when that data lives behind a
// rate-limited API, and serves reads in milliseconds even while that API is slow or down.
// `freshet dev` runs everything in one process.
//
// # Commands
//
//	roles       query, worker, scheduler   long-running processes of a deployment
//	            dev                        all roles in one process, with embedded services
//	            simulate                   only the simulated upstream
//	setup       migrate, topics, config    database schema, Kafka topics, configuration
//	clients     settings, stop, resume, limiter, entities, snapshot, dlq, keys
//	            call the HTTP API of a running query service (--addr, FRESHET_TOKEN)
//	upstream    init, try                  write a configuration from example URLs; one call of a configured source
//	probes      healthcheck, version
//
// Data goes to stdout, messages to stderr. Exit codes: 0 success, 1 error, 2 usage error, 3 not
// found, 4 partial success or not finished.
package main
