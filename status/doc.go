// Package status computes the state of a running installation that the console and the commands
// show. They render it and compute nothing.
//
// A slow read is behind a Cached value, so that any number of open pages cause one read at a time.
// If a value can't be read, its field Error has the reason, and the other values are still shown.
package status
