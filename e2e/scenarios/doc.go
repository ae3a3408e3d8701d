// Command scenarios runs load and fault scenarios against a complete installation of freshet
// and judges the results. An installation has separate processes on the real services, an
// upstream with an enforced quota, and clients.
//
//	eval "$(scripts/services up)" && cd e2e
//	go run ./scenarios --list
//	go run ./scenarios herd killed        # or: make scenarios ONLY="herd killed"
//	go run ./scenarios all                # or: make scenarios
//	go run ./scenarios --seconds 300 reads
//	go run ./scenarios observe             # or: make observe
//	go run ./scenarios --seed 7 --faults 200 torture   # or: make torture
//
// It prints each figure with its limit, and a verdict for each scenario. The variables
// FRESHET_TEST_… name PostgreSQL and Kafka; each scenario has its own database and topics in
// them. Each scenario starts its own Redis, which it may kill. The scenario torture also
// starts its own Kafka.
//
// Figures come from Kafka, the database and the upstream's log wherever possible, and not
// from freshet itself.
//
// To add a scenario, add a function to the table in scenarios.go.
//
// # Scenario torture
//
// The plan of faults depends on the seed only. A run has these phases:
//
//  1. start      two workers and two query services, each with its own proxies
//  2. load       60 reads, 10 refreshes and 50 LOW requests a second; quota 150 calls a second
//  3. faults     the steps of the plan, one or two faults at a time; ended processes are restarted
//  4. drain      the load ends; every record must be committed and every retry done within 4 minutes
//  5. judge      requests, dead letters, stored contents, responses, calls and exits of processes
//  6. afterwards no lock is left, refreshes succeed, waiting clients are notified
//
// A violation is found by comparing these sources:
//
//	lost request          topics       with the database and the dead letters
//	exceeded quota        upstream log with the quota
//	unnecessary call      upstream log with the topics
//	older snapshot        database     with its state 400 ms before
//	wrong content         database and responses with a second upstream that repeats all changes
//	lost lock             Redis        with the committed offsets
//
// For example, the plan of seed 7 begins with:
//
//	after 680 ms   upstream: 429 with Retry-After, for 1.18 s
//	after 1.82 s   worker-2: frozen for longer than a session, for 11.51 s
//	after 860 ms   database: tables locked, for 1.82 s; at the same time query-2: Redis cut, for 80 ms
package main
