// Package query is the HTTP service. It serves snapshots from its cache or the store,
// enqueues an update request when a refresh is due, and never calls the upstream. It waits
// for a refresh only if the client requests it. It also records which entities are
// read, so that the scheduler can prefetch them.
//
// # Parts of the service
//
//	Server     paths, middleware, handlers of reads, refreshes and streams
//	catalog    the configured sources, and the entity that a request path names
//	reader     reads an entity from its cache or the store, and enqueues the request that is due
//	requester  enqueues update requests of clients, and describes their states
//	responder  writes the responses of reads
//	waits      lets clients wait for new snapshots
//	tracing, readLog, readCounter
//	           spans, log lines and numbers of reads
//	contract   serves the OpenAPI document
//
// # Freshness
//
// store.FreshnessOf decides the first three columns.
//
//	stored                                      freshness   update request   status
//	checked less than FreshFor ago              FRESH       none             200
//	checked earlier                             STALE       relaxed          200
//	nothing, or fetched more than KeepFor ago   UPDATING    cache miss       202 if queued, else 400, 404, 429 or 503;
//	                                            or MISSING                   MISSING if no refresh is queued
//	not found, less than NotFoundFor ago        NOT_FOUND   none             404
//	not found, earlier                          NOT_FOUND   relaxed          404
//
// Example: a facet has FreshFor 15 min and KeepFor 24 h, and its snapshot was fetched at
// 12:00. A read at 12:10 is FRESH. A read at 12:20 is STALE: it returns the snapshot at
// once and enqueues an update request. If every refresh fails, reads return STALE until
// 12:00 of the next day, and UPDATING after that.
//
// # Cache
//
// Workers publish a settle message for each request that ends. Every query service
// subscribes to these messages.
//
//	state of an entry   event                                    next state
//	not cached          load from the store                      valid
//	valid               settle message of the entity             outdated
//	valid               30 s since the load                      outdated
//	valid               subscription lost, load older than 1 s   outdated
//	outdated            read: the store responds within 100 ms   valid
//	outdated            read: the store fails or is slow         outdated, served as a fallback
//	any                 evicted                                  not cached
//
// # Waiting for a refresh
//
// A client waits with ?wait=5s or the header Prefer: wait=5, at most 30 s:
//
//  1. Register a waiter for the entity. Each later settle message of the entity wakes the waiter.
//  2. Read the entity, and enqueue an update request if one is due.
//  3. If no refresh is expected, respond. Else wait for a settle message and repeat step 2.
//  4. If the time is up, read once more, because a settle message may have been lost, and
//     respond.
//
// GET …/events waits in the same way until the client disconnects. It sends a server-sent event for
// each change.
//
// # Failures
//
//	what fails         effect
//	database           cached snapshots are served as fallback; other reads get 503
//	Redis              snapshots are served; update requests are not queued (UNAVAILABLE)
//	Redis pub/sub      cache entries are valid for 1 s; waiting clients poll once per second
//	Kafka              update requests are buffered, then refused (BUSY)
package query
