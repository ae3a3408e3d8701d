package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// slowKafka contains the measured delays of a slow connection to Kafka.
type slowKafka struct {
	roundTrip    time.Duration // time of one Kafka request through the proxy
	untilOnTopic time.Duration // time from a read of a new key until its update request is on the topic
	err          error
}

// measureSlowKafka slows the connection to Kafka down. It measures a round trip, and the time from
// a read until its request is on the topic.
func (s *site) measureSlowKafka(ctx context.Context, r harness.Reader) (delay slowKafka) {
	s.Kafka.SetDelay(kafkaDelay)
	if delay.roundTrip, delay.err = s.Kafka.RoundTrip(ctx); delay.err == nil {
		delay.untilOnTopic, delay.err = s.untilOnTopic(ctx, r, "asked-while-slow")
	}
	return delay
}

// untilOnTopic reads a new key and returns the time until its update request is on the topic. It
// reads the topic directly from the broker and not through the slow proxy.
func (s *site) untilOnTopic(ctx context.Context, r harness.Reader, key string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	client, err := s.ConnectKafka(kgo.ConsumeTopics(schemas.RequestTopic(s.Source, schemas.High)), kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	// The load of refreshes (flood) writes records continuously. Wait for its first record, because
	// the start of this consumer must not be part of the measured time.
	for client.PollFetches(ctx).NumRecords() == 0 {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("wait for a record of the flood: %w", ctx.Err())
		}
	}
	asked := time.Now()
	if _, status, err := r.Do(ctx, http.MethodGet, r.API+"/"+facet+"/"+key, ""); err != nil || status != http.StatusAccepted {
		return 0, fmt.Errorf("read a new key with a slow Kafka: %d, %w", status, err)
	}
	for ctx.Err() == nil {
		for _, record := range client.PollFetches(ctx).Records() {
			if request, err := schemas.DecodeUpdateRequest(record.Value); err == nil && request.Key == key {
				return time.Since(asked), nil
			}
		}
	}
	return 0, fmt.Errorf("wait for the request of %s on its topic: %w", key, ctx.Err())
}

func (w slowKafka) judge(t *table) error {
	if w.err != nil {
		return fmt.Errorf("measure the delay of Kafka: %w", w.err)
	}
	t.judge("round trip to Kafka", formatDuration(w.roundTrip), ">="+formatDuration(2*kafkaDelay), w.roundTrip >= 2*kafkaDelay)
	t.judge("time until a request is on its topic", formatDuration(w.untilOnTopic), ">="+formatDuration(kafkaDelay), w.untilOnTopic >= kafkaDelay)
	return nil
}

// judgeRedisReturn restarts Redis and judges that query services enqueue refreshes again.
func (s *site) judgeRedisReturn(ctx context.Context, r harness.Reader, t *table) (err error) {
	if s.Redis, err = s.StartRedis(ctx, s.Redis.Address); err != nil {
		return err
	}
	const limit = 2 * harness.Timeout
	back, answers := time.Now(), map[int]int{}
	err = harness.Poll(ctx, limit, func() (bool, error) {
		// Each attempt uses another key, because the previous attempt may have started a cool-down of
		// its key.
		key := fmt.Sprint("stored-", characters/2+int(time.Since(back).Milliseconds())%1000)
		_, status, err := r.Do(ctx, http.MethodPost, r.API+"/"+facet+"/"+key+"/refresh", "")
		answers[status]++
		return status == http.StatusAccepted, err
	})
	took := time.Since(back)
	t.judge("time until a refresh is queued after the restart of Redis", formatDuration(took), "<"+limit.String(), answers[http.StatusAccepted] > 0)
	t.report("  responses until then, by status", "%v", answers)
	return err
}

var (
	answerLogged = regexp.MustCompile(`answer ([a-z]+-(\d+)) ([0-9a-f]{64})`)
	errNoAnswers = errors.New("k6 logged no responses")
)

// judgeDocuments judges the response bodies in the log of k6. Each body must contain the document
// that was stored for its key, or the upstream's current document if the key was refreshed.
func (s *site) judgeDocuments(ctx context.Context, x *expected, phase string, t *table) error {
	text, err := os.ReadFile(filepath.Join(s.Dir, "k6-"+phase+".log"))
	if err != nil {
		return err
	}
	seen := map[string][]string{} // the different hashes of response bodies, by key
	numbers := map[string]int{}
	for _, m := range answerLogged.FindAllStringSubmatch(string(text), -1) {
		if !slices.Contains(seen[m[1]], m[3]) {
			seen[m[1]] = append(seen[m[1]], m[3])
		}
		numbers[m[1]], _ = strconv.Atoi(m[2])
	}
	if len(seen) == 0 {
		return errNoAnswers
	}
	wrong := 0
	for key, hashes := range seen {
		var right []string
		for _, of := range []string{harness.ContentKey(numbers[key]), key} {
			text, err := x.document(ctx, facet, of)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(text)
			right = append(right, hex.EncodeToString(sum[:]))
		}
		if slices.ContainsFunc(hashes, func(h string) bool { return !slices.Contains(right, h) }) {
			wrong++
		}
	}
	t.judge("keys answered with another key's document, of the sampled ones", fmt.Sprintf("%d of %d", wrong, len(seen)), "0", wrong == 0)
	return nil
}
