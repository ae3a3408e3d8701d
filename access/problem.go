package access

import (
	"fmt"
	"net/http"
	"time"

	"github.com/freshet/freshet/problem"
)

// challenge adds the header WWW-Authenticate (RFC 6750) to a problem.
func challenge(p *problem.HTTPError, attributes string) *problem.HTTPError {
	p.Header = http.Header{"Www-Authenticate": {`Bearer realm="freshet"` + attributes}}
	return p
}

func missingToken() *problem.HTTPError {
	return challenge(problem.New(http.StatusUnauthorized, problem.TokenMissing, "Send an API key or a token, as in Authorization: Bearer fsk_…"), "")
}

// invalidToken is the problem of a rejected token. It gives no reason. Only if expiry is the token's
// sole error, the response is expiredToken, and the client can renew the token.
func invalidToken() *problem.HTTPError {
	return challenge(problem.New(http.StatusUnauthorized, problem.TokenInvalid, "The API key or token is invalid. Use another one."), `, error="invalid_token"`)
}

func expiredToken() *problem.HTTPError {
	return challenge(problem.New(http.StatusUnauthorized, problem.TokenExpired, "The API key or token has expired. Renew it."),
		`, error="invalid_token", error_description="expired"`)
}

// unknownHost is the problem of a request with an unknown Host header to a service without
// authentication.
func unknownHost() *problem.HTTPError {
	return problem.New(http.StatusMisdirectedRequest, problem.Misdirected,
		"Authentication is disabled, so the service accepts only the hosts localhost and 127.0.0.1. Add the host to access.hosts, or configure authentication.")
}

// crossSite is the problem of a request that a page of another site sends to a service without
// authentication.
func crossSite() *problem.HTTPError {
	return problem.New(http.StatusForbidden, problem.CrossSite,
		"Authentication is disabled, so the service rejects pages of other sites. Add the origin to access.allowedOrigins, or configure authentication.")
}

// forwarded is the problem of a forwarded request to a service that has no authentication
// because it listens on loopback.
func forwarded() *problem.HTTPError {
	return problem.New(http.StatusForbidden, problem.Forwarded,
		"A proxy forwarded this request, and authentication is disabled. Set access.adminTokenFile or access.jwksURL, or create an API key with `freshet keys create`. To allow every client of the proxy to read and administer, set access.require: never.")
}

// signingKeysUnavailable is the problem of a token that can't be verified now, because the
// signing keys can't be fetched.
func signingKeysUnavailable() *problem.HTTPError {
	p := problem.New(http.StatusServiceUnavailable, problem.KeysUnavailable, "Tokens can't be verified now: the signing key could not be fetched. Retry later.")
	p.After = fetchRetryDelay
	return p
}

// apiKeysTooOld is the problem of an API key that may have been revoked, because the keys were
// last read more than access.maxAge ago.
func apiKeysTooOld() *problem.HTTPError {
	p := problem.New(http.StatusServiceUnavailable, problem.KeysUnavailable, "API keys can't be verified now: the database has been unavailable for longer than access.maxAge. Retry later.")
	p.After = keyReadInterval
	return p
}

// Forbid returns the problem (403) for a client that lacks this scope.
func Forbid(s Scope) *problem.HTTPError {
	return challenge(problem.New(http.StatusForbidden, problem.InsufficientScope, fmt.Sprintf("This request needs the scope %s. Your API key or token does not have it.", s)),
		fmt.Sprintf(`, error="insufficient_scope", scope="%s"`, s))
}

// CreditsExhausted returns the problem (429) for a client that has too few credits. In each window, the
// plan of the client grants `quota` credits. The next grant follows after the duration `after`.
func CreditsExhausted(quota int64, window, after time.Duration) *problem.HTTPError {
	return limitExceeded(problem.CreditsExhausted, "credits", fmt.Sprintf("You have no credits left for this refresh. The plan grants %d credits again in %v. GET /v1/credits shows the balance.", quota, after.Round(time.Second)),
		int(quota), window, after)
}

// limitExceeded returns a problem with status 429 and the headers of
// draft-ietf-httpapi-ratelimit-headers. A window of 0 means a limit of concurrent requests.
func limitExceeded(code problem.Code, policy, detail string, quota int, window, after time.Duration) *problem.HTTPError {
	p := problem.New(http.StatusTooManyRequests, code, detail)
	p.After = max(after, time.Second)
	policyHeader := fmt.Sprintf(`"%s";q=%d;qu="concurrent-requests"`, policy, quota)
	if window > 0 {
		policyHeader = fmt.Sprintf(`"%s";q=%d;w=%d`, policy, quota, problem.Seconds(window))
	}
	p.Header = http.Header{
		"Ratelimit-Policy": {policyHeader},
		"Ratelimit":        {fmt.Sprintf(`"%s";r=0;t=%d`, policy, problem.Seconds(p.After))},
	}
	return p
}
