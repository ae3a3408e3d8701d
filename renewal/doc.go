// Package renewal renews the tokens of credentials. The generation of a token is a number that each
// renewal increases by one. All processes of a source share one row for each credential, and one of
// them renews it:
//
//	state       condition                                next
//	due         renew_at and claimed_until have passed   a process claims generation g
//	claimed     holder is set, until claimed_until       g+1 is stored, a failure is stored, or the claim ends
//	fresh       renew_at is in the future                due; or due at once, when the upstream refuses g
//	failed      claimed_until is the next attempt        due
//	STOPPED     only an operator can continue            due, after renew or authorize
//
// Example: a token of an hour is stored at 12:00:00 as generation 7 and is due at 12:55:00. At
// 12:55:00 five workers try to claim generation 7; one succeeds, calls the token endpoint, stores
// generation 8 and notifies the others on the Redis channel tokens:{source}. If the endpoint is down,
// all processes use generation 7 until 13:00:00, and one of them tries again after 5 s, 10 s and so on.
// If at 12:20:00 a hundred calls with generation 7 get a 401, the first one makes generation 7 due.
//
// Invariants: a call is never sent with an expired token. A generation is replaced at
// most once. At most one renewal of a credential is in flight, unless a process does not run for
// longer than its claim; then the first stored token wins. A process that ends between the answer and
// the commit loses the answer: a server that rotates refresh tokens without reuse grace then refuses
// the stored one, and the credential stops.
//
// The time when a token expires is stored by the database's clock, and checked by the monotonic clock
// of the process. So wrong clocks do not matter.
package renewal
