// Package access authenticates requests and limits what one client may request. A request
// costs no database query for this, because API keys and signing keys are cached.
//
// # Authentication
//
// Guard.Authenticate takes the token from the header Authorization. The first row that
// matches applies:
//
//	token                                  client                   rejected with
//	none, or not Bearer                                             401 token-missing
//	two headers, or more than 8 KiB                                 401 token-invalid
//	the content of access.adminTokenFile   admin-token
//	fsk_<id>_<secret>, or no jwksURL set   key:<id> <name>          401 token-invalid, 401 token-expired,
//	                                                                503 keys-unavailable
//	anything else: a JWT                   jwt:<sub>                401 token-invalid, 401 token-expired,
//	                                                                503 keys-unavailable
//
// Authentication is required if access.require is always, or if it is auto and a
// credential is configured, an API key was ever created, or the service listens on more
// than loopback. If it is not required, the client is unauthenticated@<address> with the
// scope admin, and requests from other sites and hosts are rejected (checkOpenRequest).
//
// # Age of keys
//
// API keys are read every 5 s, signing keys every 10 min. If a read fails, the cached keys
// stay valid until access.maxAge:
//
//	age of the last read                    API keys   API keys with scope admin
//	up to maxAge.adminKeys (5 min)          valid      valid
//	up to maxAge.apiKeys (24 h)             valid      503 keys-unavailable
//	more                                    503        503
//
// Example: the database fails at 12:00:00, and another process revokes a key at 12:00:01. The
// key stays valid in this process until the database responds: at most until 12:05:00 if the
// key has the scope admin, and until 12:00:00 of the next day otherwise.
//
// # Limits
//
// ClientLimiter has one token bucket per client for requests and one for lookups of keys
// that are not stored. With 100/s, a client may send 100 requests at once; after 250 ms it
// has 25 more. The limits of outstanding requests and new keys are shared by all processes
// and enforced by package producer; access only reports them (Refusal).
package access
