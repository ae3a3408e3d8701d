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

// slowKafka is what was seen while the way to Kafka was slow.
type slowKafka struct {
	roundTrip    time.Duration // and its answer
	untilOnTopic time.Duration // from a read of a new key to its request on the topic
	err          error
}

// measureSlowKafka slows the way to Kafka, and sees how slow it is: alone, and for a request.
func (s *site) measureSlowKafka(ctx context.Context, r harness.Reader) (was slowKafka) {
	s.Kafka.SetDelay(kafkaDelay)
	if was.roundTrip, was.err = s.Kafka.RoundTrip(ctx); was.err == nil {
		was.untilOnTopic, was.err = s.untilOnTopic(ctx, r, "asked-while-slow")
	}
	return was
}

// untilOnTopic reads a new key, and measures how long it takes until its request is on
// the topic, as one sees it who is not led over the slow way.
func (s *site) untilOnTopic(ctx context.Context, r harness.Reader, key string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	client, err := s.ConnectKafka(kgo.ConsumeTopics(schemas.RequestTopic(s.Source, schemas.High)), kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	// The flood's records tell that it reads.
	for client.PollFetches(ctx).NumRecords() == 0 {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("nothing comes to the topic: %w", ctx.Err())
		}
	}
	asked := time.Now()
	if _, status, err := r.Do(ctx, http.MethodGet, r.API+"/"+facet+"/"+key, ""); err != nil || status != http.StatusAccepted {
		return 0, fmt.Errorf("a read of a new key while Kafka is slow: %d, %w", status, err)
	}
	for ctx.Err() == nil {
		for _, record := range client.PollFetches(ctx).Records() {
			if request, err := schemas.DecodeUpdateRequest(record.Value); err == nil && request.Key == key {
				return time.Since(asked), nil
			}
		}
	}
	return 0, fmt.Errorf("its request does not come to the topic: %w", ctx.Err())
}

func (w slowKafka) judge(t *table) error {
	if w.err != nil {
		return fmt.Errorf("see how slow Kafka is: %w", w.err)
	}
	t.judge("a question to Kafka and its answer take", formatDuration(w.roundTrip), ">="+formatDuration(2*kafkaDelay), w.roundTrip >= 2*kafkaDelay)
	t.judge("a request is on its topic after", formatDuration(w.untilOnTopic), ">="+formatDuration(kafkaDelay), w.untilOnTopic >= kafkaDelay)
	return nil
}

// judgeRedisReturn judges that refreshes are queued again when Redis is back.
func (s *site) judgeRedisReturn(ctx context.Context, r harness.Reader, t *table) (err error) {
	if s.Redis, err = s.StartRedis(ctx, s.Redis.Address); err != nil {
		return err
	}
	const limit = 2 * harness.Timeout
	back, answers := time.Now(), map[int]int{}
	err = harness.Poll(ctx, limit, func() (bool, error) {
		// Another one each time: what was asked for a moment ago is refused.
		key := fmt.Sprint("stored-", characters/2+int(time.Since(back).Milliseconds())%1000)
		_, status, err := r.Do(ctx, http.MethodPost, r.API+"/"+facet+"/"+key+"/refresh", "")
		answers[status]++
		return status == http.StatusAccepted, err
	})
	took := time.Since(back)
	t.judge("a refresh is queued when Redis is back, after", formatDuration(took), "<"+limit.String(), answers[http.StatusAccepted] > 0)
	t.report("  until then it was answered", "%v", answers)
	return err
}

var (
	answerLogged = regexp.MustCompile(`answer ([a-z]+-(\d+)) ([0-9a-f]{64})`)
	errNoAnswers = errors.New("the users logged no answers")
)

// judgeDocuments judges the answers that the users logged: each has what was stored for
// its key, or what the upstream has for it if it has been refreshed.
func (s *site) judgeDocuments(ctx context.Context, x *expected, phase string, t *table) error {
	text, err := os.ReadFile(filepath.Join(s.Dir, "k6-"+phase+".log"))
	if err != nil {
		return err
	}
	seen := map[string][]string{} // the different hashes of each key
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
	t.judge("keys answered with the document of another, of those looked at", fmt.Sprintf("%d of %d", wrong, len(seen)), "0", wrong == 0)
	return nil
}
