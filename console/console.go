// Package console is the pages on which operators see what freshet does, and steer it:
// what the budget is doing, why something waits, what died and why.
package console
