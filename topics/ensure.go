// Package topics creates the Kafka topics of a source, reports how existing topics differ from
// schemas.Topics, and measures the lag of their consumer groups. Workers, readers and operators
// share its measurements.
package topics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/freshet/freshet/schemas"
)

// Replication is the replication of topics. 0 means automatic: Factor is the number of brokers, at
// most 3, and MinInsync is one less than Factor.
type Replication struct {
	Factor    int
	MinInsync int
}

// Topic is the state of a topic after Ensure.
type Topic struct {
	Name    string
	Created bool
	// Drift lists how an existing topic differs from the design (schemas.Topics). Ensure never
	// changes an existing topic, because the difference may be intended.
	Drift []string
}

// Ensure creates the source's missing topics and compares the existing topics with schemas.Topics.
func Ensure(ctx context.Context, admin *kadm.Client, source string, replication Replication) ([]Topic, error) {
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list Kafka brokers: %w", err)
	}
	factor := replication.Factor
	if factor == 0 {
		factor = min(3, len(brokers))
	}
	if factor > len(brokers) {
		return nil, fmt.Errorf("kafka.replicationFactor is %d, but Kafka has only %d brokers; lower it or add brokers", factor, len(brokers))
	}
	insync := replication.MinInsync
	if insync == 0 {
		insync = max(1, factor-1)
	}
	var topics []Topic
	for _, want := range schemas.Topics(source) {
		topic, err := ensure(ctx, admin, want, factor, insync)
		if err != nil {
			return topics, fmt.Errorf("topic %s: %w", want.Name, err)
		}
		topics = append(topics, topic)
	}
	return topics, awaitCreated(ctx, admin, topics)
}

// awaitCreated waits until the brokers serve the created topics, which happens a moment after the
// creation was acknowledged.
func awaitCreated(ctx context.Context, admin *kadm.Client, topics []Topic) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for _, topic := range topics {
		for topic.Created {
			ends, err := admin.ListEndOffsets(ctx, topic.Name)
			if err == nil && ends.Error() == nil && len(ends) > 0 {
				break
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				return fmt.Errorf("topic %s was created, but no broker serves it yet: %w", topic.Name, errors.Join(err, ends.Error()))
			}
		}
	}
	return nil
}

func ensure(ctx context.Context, admin *kadm.Client, want schemas.Topic, factor, insync int) (Topic, error) {
	settings := map[string]string{
		"cleanup.policy":      "delete",
		"retention.ms":        strconv.FormatInt(want.Retention.Milliseconds(), 10),
		"max.message.bytes":   strconv.Itoa(want.MaxMessageBytes),
		"min.insync.replicas": strconv.Itoa(insync),
		// Replays find their records by the producer's timestamps (dlq.Kafka.EnqueuedByJob).
		"message.timestamp.type": "CreateTime",
	}
	configs := make(map[string]*string, len(settings))
	for name, value := range settings {
		configs[name] = &value
	}
	_, err := admin.CreateTopic(ctx, want.Partitions, int16(factor), configs, want.Name) //nolint:gosec // factor is at most the number of brokers
	if err == nil {
		return Topic{Name: want.Name, Created: true}, nil
	}
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return Topic{}, fmt.Errorf("create: %w", err)
	}
	drift, err := compare(ctx, admin, want, factor, settings)
	return Topic{Name: want.Name, Drift: drift}, err
}

func compare(ctx context.Context, admin *kadm.Client, want schemas.Topic, factor int, settings map[string]string) ([]string, error) {
	var drift []string
	listed, err := admin.ListTopics(ctx, want.Name)
	if err == nil {
		err = listed[want.Name].Err
	}
	if err != nil {
		return nil, fmt.Errorf("describe: %w", err)
	}
	if n := len(listed[want.Name].Partitions); n != int(want.Partitions) {
		drift = append(drift, fmt.Sprintf("has %d partitions, the design says %d", n, want.Partitions))
	}
	if n := listed[want.Name].Partitions.NumReplicas(); n < factor {
		drift = append(drift, fmt.Sprintf("has %d replicas, the design says %d", n, factor))
	}
	described, err := admin.DescribeTopicConfigs(ctx, want.Name)
	if err != nil {
		return nil, fmt.Errorf("describe its configuration: %w", err)
	}
	config, err := described.On(want.Name, nil)
	if err == nil {
		err = config.Err
	}
	if err != nil {
		return nil, fmt.Errorf("describe its configuration: %w", err)
	}
	for _, c := range config.Configs {
		if value, ours := settings[c.Key]; ours && c.MaybeValue() != value {
			drift = append(drift, fmt.Sprintf("has %s=%s, the design says %s", c.Key, c.MaybeValue(), value))
		}
	}
	return drift, nil
}
