// Package status computes the state of a running installation for the console and the commands,
// which only render it.
//
// The result of a slow read is kept in a Cached value, so that any number of open pages cause at
// most one read at a time. If a value can't be read, its field Error has the reason, and the other
// values are still shown.
package status
