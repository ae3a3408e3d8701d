package console

import (
	"html/template"
	"strings"
)

// terms are the definitions that the pages show behind a question mark. Their texts equal the texts
// of docs/concepts.md, without backquotes and asterisks.
var terms = map[string]string{
	"backoff":         "A pause of one scope because the upstream asked for it (429, Retry-After, maintenance). It ends with one call, the probe.",
	"circuit breaker": "open: no calls to a source, endpoint or credential that is unhealthy; half-open: single probes; closed: normal. Redis and the database have breakers too.",
	"collection":      "An entity whose content is a list that is kept item by item. Its snapshot has the number of items and the time of the last complete walk.",
	"credit":          "The unit that a client pays for a refresh. A hold sets credits aside; they are spent (captured) or given back (released, expired).",
	"dead letter":     "An update request that cannot succeed without a human. It is kept on the topic NAME.update-dlq byte for byte, and indexed in the table dead_letters.",
	"run":             "A run fetches many entities and collections as one unit of work with one end. It has a step for each of them.",
	"due time":        "The time at which an entity is prefetched next.",
	"emergency stop":  "An operator stops all upstream calls of a source until it is resumed.",
	"entity":          "Source, facet and key together: the unit that is fetched, stored, refreshed and prefetched.",
	"facet":           "One part of an entity that is fetched and refreshed separately, for example progress of a court case.",
	"freshness":       "The state a reader gets: FRESH (checked within freshFor), STALE (older; a refresh is queued), UPDATING (nothing stored yet; a fetch is queued), MISSING (nothing stored, and no fetch is queued), NOT_FOUND (a not-found result is stored).",
	"hold":            "An entity is not requested again until a time, because it failed, is suspended, was not found or waits for its alias.",
	"lane":            "HIGH (a person waits) or LOW (background). Each lane has a topic, a consumer group, and a share of the quota.",
	"outbox":          "Change events, triggers and links are stored in the same transaction as the snapshot. A relay delivers them afterwards, at least once.",
	"permit":          "The right to send one upstream call at its time slot. It expires 40 ms later.",
	"prefetch":        "The scheduler enqueues refreshes of registered entities in the LOW lane before readers request them.",
	"quota policy":    "One limit of a source: a window, a calendar day, a token bucket, a maximum number of calls in flight, a minimum interval, an error budget, or a reported limit.",
	"replay":          "Replay: enqueue a dead letter again. Purge: mark it as handled without a replay. A DLQ job does either for many dead letters.",
	"reserve":         "The share of a policy that only the HIGH lane can use.",
	"retry":           "A failed request is written to the database with its next time, and requested again at that time.",
	"role":            "What a process runs: query, worker, scheduler, or all of them as dev.",
	"scope":           "The object whose calls a policy counts: the source, each credential, endpoint, host, resource or parameter.",
	"snapshot":        "The last extracted content of an entity, with its hash, version, and the times it was fetched, checked and updated.",
	"source":          "One upstream API with its own quota, credentials, Kafka topics and workers.",
	"tier":            "How often an entity is prefetched: hot, warm or cold. Reads move an entity between tiers, unless its tier is pinned.",
	"trigger":         "A change of one facet enqueues a refresh of another facet of the same key, or of an entity that is computed from it.",
	"webhook":         "A request of the upstream that says which entities have changed. It carries no content: it enqueues a refresh whose fetch begins after it.",
	"visibility":      "A label of a credential. Only clients with the scope see:LABEL can read content that was fetched with that credential.",
}

// explainTerm returns a button that shows the definition of a term. The layout contains the definitions.
func explainTerm(term string) template.HTML {
	if terms[term] == "" {
		panic("console: the term " + term + " has no definition")
	}
	return template.HTML(`<button type="button" class="what" popovertarget="term-` + termID(term) + `" aria-label="What is: ` + term + `?">?</button>`) //nolint:gosec // the terms are constants of this package
}

// termID returns the term as a part of the id of an HTML element.
func termID(term string) string { return strings.ReplaceAll(term, " ", "-") }
