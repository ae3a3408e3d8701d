package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
)

// missingEntitiesAreRead reads an entity that does not exist in the upstream. It reads the entity
// several times, and checks that the upstream gets only one call.
func missingEntitiesAreRead(c *testSource) {
	keys := harness.Keys("notfound-", 3)
	c.request(keys...)
	c.untilChecked(timeout, time.Now())
	var readers sync.WaitGroup
	for i := range 20 {
		readers.Go(func() {
			for range 150 {
				if a, err := c.get(keys[i%3]); err != nil || a.Freshness != "NOT_FOUND" || a.Refresh.Queued {
					c.T.Errorf("%s: got %+v, %v, want NOT_FOUND and nothing queued", keys[i%3], a, err)
					return
				}
			}
		})
	}
	readers.Wait()
	c.expectEnd(0)
	equal(c.T, "calls for three missing entities that were read 3,000 times", c.upstream.Stats().Arrivals, 3)
}

// notReadyIsRetried checks that an entity that is not ready is retried later and never counts as a
// failure.
func notReadyIsRetried(c *testSource) {
	c.fail(simulator.Fault{Kind: simulator.NotReady, Key: "^later"})
	later := harness.Keys("later", 5)
	c.request(later...)
	for _, key := range later {
		c.within(timeout, "a retry of "+key, func() bool { return c.status(key).State == store.Retrying })
		s := c.status(key)
		equal(c.T, "rounds of "+key, s.Rounds, 0)
		equal(c.T, "reason of "+key, s.Reason, string(schemas.NotReady))
		atLeast(c.T, "delay of "+key, time.Until(s.Until), 2*time.Minute)
		atMost(c.T, "delay of "+key, time.Until(s.Until), 450*time.Second)
	}
	// The worker writes the retry to the database first and the hold to Redis afterwards. A read
	// that shows the hold therefore proves that the retry is stored.
	c.within(timeout, "an answer with the hold", func() bool {
		a, err := c.get(later[0])
		return err == nil && a.Refresh.Reason == "HELD_RETRYING"
	})
	first := c.status(later[0])
	c.retryNow(first)
	c.within(timeout, "the first retry", func() bool { return c.status(later[0]).Version > first.Version })
	second := c.status(later[0])
	equal(c.T, "rounds after the first retry", second.Rounds, 0)
	equal(c.T, "state after the first retry", second.State, store.Retrying)
	c.fail()
	for _, key := range later {
		c.retryNow(c.status(key))
	}
	took := c.untilChecked(withBusy(recovery), time.Now())
	c.T.Logf("all fresh %v after they were due", took.Round(10*time.Millisecond))
	c.expectEnd(0)
}

// expectDeadLetter checks that the index contains exactly one dead letter, that it belongs to the
// entity, and that a read of the entity enqueues no request.
func (c *testSource) expectDeadLetter(key string, reason schemas.DeadLetterReason, attempts int) {
	c.T.Helper()
	all := c.indexed()
	if len(all) != 1 {
		c.T.Fatalf("dead letters in the index: got %d, want 1", len(all))
	}
	equal(c.T, "entity of the dead letter", all[0].Entity, c.entity(key))
	equal(c.T, "reason", all[0].Reason, reason)
	equal(c.T, "attempts", all[0].Attempts, attempts)
	s := c.status(key)
	equal(c.T, "state", s.State, store.Failed)
	equal(c.T, "failures", s.Failures, 1)
	for range 100 {
		a, err := c.get(key)
		if a.Refresh.Reason == "SLOW" {
			continue // ignore SLOW: on a busy machine the query service may answer before it has a result from Redis
		}
		if err != nil || a.Refresh.Reason != "HELD_FAILED" {
			c.T.Fatalf("a read of %s: got %+v, %v, want HELD_FAILED", key, a, err)
		}
	}
}

// without removes a key from c.keys, the keys that must be fresh at the end of the test.
func (c *testSource) without(key string) {
	c.keys = slices.DeleteFunc(c.keys, func(k string) bool { return k == key })
}

// oneEntityIsRefused checks that a request becomes a dead letter if the upstream answers 400.
// First, calls for other entities must have confirmed that the upstream works.
func oneEntityIsRefused(c *testSource) {
	c.fail(simulator.Fault{Kind: simulator.BadParameter, Key: "^bad$"})
	began := time.Now()
	c.request("bad")
	c.without("bad")
	for i := 0; c.deadLetters() < 1 && time.Since(began) < timeout; i++ {
		c.request("k" + strconv.Itoa(i))
	}
	c.T.Logf("the dead letter came after %v, with %d other entities", time.Since(began).Round(10*time.Millisecond), len(c.keys))
	c.untilChecked(timeout, time.Now())
	c.expectEnd(1)
	c.expectDeadLetter("bad", schemas.Upstream4xx, 2)
}

// oneEntityFails checks that a request is retried three times if the upstream returns 5xx for its
// entity. Then the request must become a dead letter.
func oneEntityFails(c *testSource) {
	c.fail(simulator.Fault{Kind: simulator.InternalError, Key: "^bad$"})
	c.request("bad")
	c.without("bad")
	for round := 1; round <= 3; round++ {
		c.request(harness.Keys(fmt.Sprintf("round%d-", round), 20)...)
		c.within(timeout, fmt.Sprintf("round %d", round), func() bool { return c.status("bad").Rounds == round })
		equal(c.T, "state", c.status("bad").State, store.Retrying)
		equal(c.T, "dead letters before the last round", c.deadLetters(), 0)
		c.retryNow(c.status("bad"))
	}
	c.within(timeout, "the dead letter", func() bool { return c.status("bad").State == store.Failed })
	c.untilChecked(timeout, time.Now())
	c.expectEnd(1)
	c.expectDeadLetter("bad", schemas.Upstream5xx, 3)
	equal(c.T, "failed calls, of four rounds with three each", c.upstream.Stats().ByStatus[http.StatusInternalServerError], 12)
}

// deadLetterTopicIsMissing checks that a record is not committed while its dead letter cannot be
// written. It checks this in two rounds. Only in the second round has the worker's Kafka client
// already written to the dead-letter topic.
func deadLetterTopicIsMissing(c *testSource) {
	topic := schemas.DeadLetterTopic(c.source)
	for i, poison := range []string{"\x00 no request", `{"schemaVersion":"99"}`} {
		_, err := c.admin.DeleteTopic(c.T.Context(), topic)
		c.must(err)
		c.within(timeout, "the deletion of the topic", func() bool { return !c.hasPartition(topic) })
		held := func() float64 { return c.metric("dependency_failures_total", "write dead letters") }
		before := held()
		record := &kgo.Record{Topic: schemas.RequestTopic(c.source, schemas.High), Key: []byte("poison"), Value: []byte(poison)}
		c.must(c.kafka.ProduceSync(c.T.Context(), record).FirstErr())
		c.within(timeout, "a failed write of the dead letter", func() bool { return held() > before })
		c.request(harness.Keys(fmt.Sprintf("beside%d-", i), 20)...)
		c.untilChecked(timeout, time.Now())
		atLeast(c.T, "records that are not committed", c.lag(), 1)
		_, err = c.admin.CreateTopic(c.T.Context(), 1, 1, nil, topic)
		c.must(err)
		created := time.Now()
		c.within(2*timeout, "the dead letter", func() bool { return c.deadLetters() == 1 })
		c.within(timeout, "the commit of every offset", func() bool { return c.lag() == 0 })
		c.T.Logf("the dead letter was written and its record committed %v after the topic was created", time.Since(created).Round(10*time.Millisecond))
		equal(c.T, "value of the dead letter", string(c.only(topic)), poison)
	}
}

// hasPartition reports whether a broker has partition 0 of a topic. It asks the brokers themselves,
// because a deleted topic disappears from the metadata while its partition still takes records.
func (c *testSource) hasPartition(topic string) bool {
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = -1 // -1 asks for the offset at the end of the partition
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic, asked.Partitions = topic, []kmsg.ListOffsetsRequestTopicPartition{partition}
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID, request.Topics = -1, []kmsg.ListOffsetsRequestTopic{asked}
	for _, broker := range c.kafka.DiscoveredBrokers() {
		response, err := broker.RetriableRequest(c.T.Context(), request)
		c.must(err)
		for _, t := range response.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode == 0 {
					return true
				}
			}
		}
	}
	return false
}
