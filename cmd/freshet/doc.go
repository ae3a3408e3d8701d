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
//
// # Wiring
//
// Each role is a function of parts: the configuration, the connections and the logger. `connect`
// builds the parts on real services, and `startEmbedded` on embedded ones, so dev runs the same
// roles as a deployment. parts.run creates the Kafka client, the producer and the lag sampler,
// which all roles share.
//
// Shutdown has a fixed order: a role stops accepting work, waits for its work in flight, and only
// then stops its dependencies. For example, a worker stops consuming, stores the results of calls
// in flight and commits their offsets; then the limiters stop, and last the producer is flushed.
//
//	signal → foreground group (roles) stops → background group (limiters, producer, sampler) stops → exit
//
// An error of any function in a group cancels its group, and the process shuts down the same way.
package main
