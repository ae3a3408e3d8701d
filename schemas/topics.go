package schemas

import "time"

// Topic describes one topic of a source as `topics ensure` creates it (adr-013 §4). The replication
// factor is no part of it, because it depends on the number of brokers.
type Topic struct {
	Name       string
	Partitions int32
	Retention  time.Duration
	// MaxMessageBytes is the topic's max.message.bytes.
	MaxMessageBytes int
}

const (
	// MaxRecordBytes is max.message.bytes of the request topics: Kafka's default.
	MaxRecordBytes = 1 << 20
	// MaxRequestBytes is the maximum size of an encoded UpdateRequest. Real requests have some
	// hundred bytes. The largest request that the limits of keys and headers allow has a few
	// thousand bytes.
	MaxRequestBytes = 64 << 10
	// deadLetterRoom is the maximum number of bytes that the headers of a dead letter add to the
	// original record.
	deadLetterRoom = 64 << 10
)

// RequestTopic returns the name of the lane's topic.
func RequestTopic(source string, lane Lane) string {
	if lane == High {
		return source + ".update-priority-high"
	}
	return source + ".update-priority-low"
}

// DeadLetterTopic returns the name of the source's dead-letter topic.
func DeadLetterTopic(source string) string { return source + ".update-dlq" }

// ChangeTopic returns the name of the source's change topic.
func ChangeTopic(source string) string { return source + ".changes" }

// RunTopic returns the name of the topic on which the ends of the source's runs are published.
func RunTopic(source string) string { return source + ".runs" }

// Group returns the name of the lane's consumer group.
func Group(source string, lane Lane) string {
	if lane == High {
		return source + ".high-worker"
	}
	return source + ".low-worker"
}

// Retention returns the retention of the lane's topic.
func Retention(lane Lane) time.Duration {
	if lane == High {
		return 24 * time.Hour
	}
	return 72 * time.Hour
}

// Topics returns the topics of a source. Sources share no topics, so that a slow source never
// blocks a fast one.
func Topics(source string) []Topic {
	return []Topic{
		{RequestTopic(source, High), 24, Retention(High), MaxRecordBytes},
		{RequestTopic(source, Low), 24, Retention(Low), MaxRecordBytes},
		{DeadLetterTopic(source), 12, 7 * 24 * time.Hour, MaxRecordBytes + deadLetterRoom},
		{ChangeTopic(source), 12, 7 * 24 * time.Hour, MaxRecordBytes},
		{RunTopic(source), 12, 7 * 24 * time.Hour, MaxRecordBytes},
	}
}
