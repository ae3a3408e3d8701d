// Package client calls the HTTP API of a query service. It depends only on the standard library and
// on package problem. docs/clients.md shows its use.
//
// A request is handled in this order:
//
//	wait for the end of a rate limit → add the token → send → renew an expired token, once
//	→ repeat a failed read after Retry-After or a random delay → result or *Problem
//
// With Sensitive, a request whose token had to be renewed ends with ErrConfirm and is not repeated.
//
// States of the token, if Options.Renew is set:
//
//	state       event                                          next state
//	missing     a request                                      renewing
//	valid       the renewal time has passed                    valid, with a renewal in the background
//	valid       the service rejects it as token-expired        renewing
//	renewing    Renew returns a token                          valid, with the next generation
//	renewing    Renew fails                                    as before; the waiting requests fail
//	renewing    Renew returns ErrSignedOut                     signed out
//	valid       a request got it by a renewal, and it is       signed out
//	            rejected as token-expired too
//	signed out  SetToken                                       valid
//
// Example: 100 goroutines send the expired token of generation 1. The first response with
// token-expired starts the renewal, and the other 99 requests wait for the same renewal. Then each
// request is repeated once with the token of generation 2: 200 requests and 1 renewal.
package client
