// Package virtual runs whole installations in virtual time and judges each hour. Two query services,
// two workers and two schedulers run with the shipped code, inside testing/synctest. Kafka (kfake),
// Redis (miniredis), SQLite and the simulator of an upstream are connected by a network in memory.
//
//	seed ─► plan of faults ─► day in the world ─► oracle, each hour ─► findings
//	             ▲                                                       │
//	             └──────────── shrink: drop faults while it fails ◄──────┘
//
// A seed determines the plan, the readers and the contents. It does not determine the order of
// goroutines that wake in the same instant, so a seed may need several runs to fail again.
//
// The build tag synctests is necessary. With it, the Kafka client has locks that let the virtual time
// pass. Without it, a run never ends if a commit waits for a rebalance.
//
// All code is in tests, because testing/synctest works only in tests. A new capability adds its
// invariants as a check to the list in oracle_test.go.
package virtual
