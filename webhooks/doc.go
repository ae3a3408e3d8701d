// Package webhooks receives webhooks of upstreams. A webhook says that an entity has changed. It
// carries no content: a delivery with a valid signature requests a strict refresh of the entity, which
// is satisfied only by a fetch that begins after the delivery.
//
// Steps of one delivery. If a step refuses the delivery, the next steps are skipped:
//
//	header check   scheme token: the token; other schemes: signature present, time within 5 min
//	body           at most 25 MiB, within the process's memory for bodies
//	signature      HMAC of the unchanged bytes, compared in constant time with each secret
//	rules          the rules whose condition holds name the facets and keys
//	known keys     stored or registered keys; others only within the limit newKeys
//	enqueue        Kafka acknowledges the requests; the database stores delayed ones
//	response       202
//
// Invariants:
//   - 202 is sent only after every request of the delivery is durable: acknowledged by Kafka, or, with
//     a delay, committed to the database. Otherwise the response is an error, and the sender must
//     repeat the delivery. A repeated delivery is harmless: requests of one entity coalesce.
//   - No delivery without a valid signature reads the database, Redis or Kafka.
//   - A secret is in no log, error, metric or response. The time of a comparison does not depend on
//     the secret.
//   - A delivery causes no call for a key that freshet does not know, unless newKeys allows it.
//
// Example: `delay: 5s` and 10,000 deliveries for one repository within a minute. The first delivery
// stores an outbox event that is due 5 s later. Each further delivery moves the event to 5 s after
// itself, but at most to 50 s (ten delays) after the first. So the repository is fetched after 50 s,
// and once more 5 s after the last delivery.
package webhooks
