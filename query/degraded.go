package query

import (
	"net/http"
	"time"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

const (
	// degradedHeader says why a response has content that may be outdated: a RefreshReason, or one of
	// the reasons below.
	degradedHeader = "Freshet-Degraded"
	// reasonStore: the database can't be read, so content from memory or from a file is served.
	reasonStore RefreshReason = "STORE_UNAVAILABLE"
	// reasonWait: the refresh did not end within the wait of the read.
	reasonWait RefreshReason = "WAIT_EXPIRED"
	// reasonUpdating: the first fetch is queued; until it ends, a file is served.
	reasonUpdating RefreshReason = "UPDATING"
	// unknownRetryAfter is the Retry-After of a read if the first fetch did not end within its wait.
	unknownRetryAfter = 5 * time.Second
)

// degradedReason returns why the content of a response may be outdated; empty means that the content
// is current, or a refresh of it is queued as usual.
func (v view) degradedReason(refresh *refreshState) RefreshReason {
	switch {
	case v.degraded != "":
		return v.degraded
	case v.fallback:
		return reasonStore
	case v.freshness != store.Stale || refresh == nil:
		return ""
	case refresh.Reason != "" && refresh.Reason != reasonPending:
		return refresh.Reason
	case v.waited:
		return reasonWait
	}
	return ""
}

// setDegraded sets the headers of a degraded response. HTTP caches must revalidate it before they
// use it.
func (v view) setDegraded(h http.Header, refresh *refreshState) {
	reason := v.degradedReason(refresh)
	if reason == "" {
		return
	}
	origin := "stored"
	switch {
	case v.static:
		origin = "static"
	case v.fallback:
		origin = "memory"
	}
	h.Set(degradedHeader, string(reason))
	h.Set("Cache-Status", h.Get("Cache-Status")+`; detail="`+origin+`; `+string(reason)+`"`)
	if v.facet.Immutable {
		h.Set("Cache-Control", "no-cache")
	}
}

// nothingKnown returns the problem of a read that waited because of the facet's setting `wait`. The
// first fetch of its entity did not end in this time.
func nothingKnown(result EnqueueResult, body readBody) error {
	detail := "Nothing is stored, and the first fetch did not end in time"
	if body.Refresh != nil && body.Refresh.Reason != "" {
		detail += " (" + string(body.Refresh.Reason) + ")"
	}
	p := problem.New(http.StatusServiceUnavailable, problem.WaitExpired, detail+". Retry later.")
	p.After = unknownRetryAfter
	return &readError{p, &body}
}
