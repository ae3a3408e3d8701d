package schemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Header is one header of a record.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// TraceParent is the header that carries the W3C trace context from the read
// that asked for a refresh to the dead letter it may end as, unchanged.
const TraceParent = "traceparent"

// Headers that a dead letter adds to those its record had.
const (
	deadLetterPrefix = "__dlq.errors."

	headerSchema     = deadLetterPrefix + "schema"
	headerReason     = deadLetterPrefix + "reason"
	headerError      = deadLetterPrefix + "error"
	headerAttempts   = deadLetterPrefix + "attempts"
	headerTopic      = deadLetterPrefix + "topic"
	headerPartition  = deadLetterPrefix + "partition"
	headerOffset     = deadLetterPrefix + "offset"
	headerGroup      = deadLetterPrefix + "group"
	headerWorker     = deadLetterPrefix + "worker"
	headerTime       = deadLetterPrefix + "time"
	headerStatus     = deadLetterPrefix + "status"
	headerSample     = deadLetterPrefix + "sample"
	headerSampleType = deadLetterPrefix + "sample.type"
	headerValueBytes = deadLetterPrefix + "value.bytes"
)

// DeadLetterReason says why a request needs a human.
type DeadLetterReason string

// The reasons; see dead_letter.v1.schema.json for what each one means.
const (
	Undecodable     DeadLetterReason = "UNDECODABLE"
	UnknownMajor    DeadLetterReason = "UNKNOWN_MAJOR"
	OversizedRecord DeadLetterReason = "OVERSIZED_RECORD"
	InvalidRequest  DeadLetterReason = "INVALID_REQUEST"
	Upstream4xx     DeadLetterReason = "UPSTREAM_4XX"
	Upstream5xx     DeadLetterReason = "UPSTREAM_5XX"
	Unreachable     DeadLetterReason = "UPSTREAM_UNREACHABLE"
	NotReady        DeadLetterReason = "UPSTREAM_NOT_READY"
	ParseError      DeadLetterReason = "PARSE_ERROR"
	OversizedAnswer DeadLetterReason = "OVERSIZED_ANSWER"
	Unstorable      DeadLetterReason = "UNSTORABLE"
	// Outage is why a request is asked again later, and never that of a letter:
	// the endpoint was sick, and not the entity.
	Outage DeadLetterReason = "UPSTREAM_OUTAGE"
)

// DeadLetterReasons are those that a letter may have.
var DeadLetterReasons = []DeadLetterReason{
	Undecodable, UnknownMajor, OversizedRecord, InvalidRequest, Upstream4xx, Upstream5xx, Unreachable, NotReady, ParseError, OversizedAnswer, Unstorable,
}

const (
	// MaxSampleBytes bounds the part of an upstream's answer that is kept.
	MaxSampleBytes = 16 << 10
	maxErrorBytes  = 4 << 10
)

// DeadLetter is a record that can't be processed without a human. On its topic
// it has the original key, value and headers, byte for byte, and its own facts
// as further headers; MarshalJSON gives the form that tools print.
type DeadLetter struct {
	Key     []byte           `json:"key"`
	Value   []byte           `json:"value"`
	Headers []Header         `json:"headers"` // the original ones
	Reason  DeadLetterReason `json:"reason"`
	Error   string           `json:"error"`
	// Attempts counts the upstream calls made for the request; 0 if it was
	// never sent.
	Attempts  int       `json:"attempts"`
	Topic     string    `json:"topic"` // where it was read: topic, partition, offset, by group and worker
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Group     string    `json:"group"`
	Worker    string    `json:"worker"`
	Time      time.Time `json:"time"`
	// Status is the HTTP status of the upstream's last answer; 0 if there was none.
	Status     int    `json:"status,omitempty"`
	Sample     []byte `json:"sample,omitempty"` // the answer's first bytes, decompressed
	SampleType string `json:"sampleType,omitempty"`
	// ValueBytes is set on a letter that was cut: the length of the original
	// value, which lies whole at Topic, Partition and Offset while that is kept.
	ValueBytes int `json:"valueBytes,omitempty"`
}

// Cut returns the letter with no more of its record than surely fits: the
// beginning of the value and of the key, and none of the original headers but
// the trace. It is for a record that its topic took better compressed than the
// letter can be.
func (d DeadLetter) Cut() DeadLetter {
	d.ValueBytes = len(d.Value)
	d.Value = d.Value[:min(len(d.Value), MaxRecordBytes/2)]
	d.Key = d.Key[:min(len(d.Key), deadLetterRoom)]
	d.Headers = slices.DeleteFunc(slices.Clone(d.Headers), func(h Header) bool {
		return h.Key != TraceParent || len(h.Value) > maxErrorBytes
	})
	return d
}

// RecordHeaders returns the headers of the record on the dead-letter topic: the
// original ones in their order, then the letter's own. The sample is cut to
// MaxSampleBytes, so that the letter fits its topic wherever the original
// fitted its own.
func (d DeadLetter) RecordHeaders() []Header {
	headers := make([]Header, 0, len(d.Headers)+13)
	for _, h := range d.Headers {
		if !strings.HasPrefix(h.Key, deadLetterPrefix) {
			headers = append(headers, h)
		}
	}
	add := func(key, value string) { headers = append(headers, Header{key, []byte(value)}) }
	add(headerSchema, "1")
	add(headerReason, string(d.Reason))
	add(headerError, cut(d.Error, maxErrorBytes))
	add(headerAttempts, strconv.Itoa(d.Attempts))
	add(headerTopic, d.Topic)
	add(headerPartition, strconv.Itoa(int(d.Partition)))
	add(headerOffset, strconv.FormatInt(d.Offset, 10))
	add(headerGroup, d.Group)
	add(headerWorker, d.Worker)
	add(headerTime, d.Time.UTC().Format(time.RFC3339Nano))
	if d.Status != 0 {
		add(headerStatus, strconv.Itoa(d.Status))
	}
	if d.ValueBytes != 0 {
		add(headerValueBytes, strconv.Itoa(d.ValueBytes))
	}
	if len(d.Sample) > 0 {
		add(headerSample, string(d.Sample[:min(len(d.Sample), MaxSampleBytes)]))
		add(headerSampleType, cut(d.SampleType, maxNameBytes))
	}
	return headers
}

// cut shortens s to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// ParseDeadLetter reads a record of a dead-letter topic. It fails for a record
// that no worker of this major wrote.
func ParseDeadLetter(key, value []byte, headers []Header) (DeadLetter, error) {
	d := DeadLetter{Key: key, Value: value}
	own := make(map[string]string, 13)
	for _, h := range headers {
		if strings.HasPrefix(h.Key, deadLetterPrefix) {
			own[h.Key] = string(h.Value)
		} else {
			d.Headers = append(d.Headers, h)
		}
	}
	if own[headerSchema] != "1" {
		return DeadLetter{}, fmt.Errorf("not a dead letter this release can read: header %s is %q, not \"1\"", headerSchema, own[headerSchema])
	}
	number := func(name string, bits int, errs *[]error) int64 {
		n, err := strconv.ParseInt(own[name], 10, bits)
		if err != nil {
			*errs = append(*errs, fmt.Errorf("header %s: %w", name, err))
		}
		return n
	}
	var errs []error
	d.Reason = DeadLetterReason(own[headerReason])
	d.Error = own[headerError]
	d.Attempts = int(number(headerAttempts, 32, &errs))
	d.Topic = own[headerTopic]
	d.Partition = int32(number(headerPartition, 32, &errs)) //nolint:gosec // parsed as 32 bits
	d.Offset = number(headerOffset, 64, &errs)
	d.Group = own[headerGroup]
	d.Worker = own[headerWorker]
	when, err := time.Parse(time.RFC3339Nano, own[headerTime])
	if err != nil {
		errs = append(errs, fmt.Errorf("header %s: %w", headerTime, err))
	}
	d.Time = when
	if _, there := own[headerStatus]; there {
		d.Status = int(number(headerStatus, 32, &errs))
	}
	if _, there := own[headerValueBytes]; there {
		d.ValueBytes = int(number(headerValueBytes, 64, &errs))
	}
	if sample, there := own[headerSample]; there {
		d.Sample, d.SampleType = []byte(sample), own[headerSampleType]
	}
	return d, errors.Join(errs...)
}

// MarshalJSON returns the form described by dead_letter.v1.schema.json: the
// letter's fields, byte strings in base64, and beside them the request that its
// value holds, or null if it can't be decoded.
func (d DeadLetter) MarshalJSON() ([]byte, error) {
	type plain DeadLetter
	out := struct {
		plain
		Request *UpdateRequest `json:"request"`
	}{plain: plain(d)}
	if r, err := DecodeUpdateRequest(d.Value); err == nil {
		out.Request = &r
	}
	if out.Headers == nil {
		out.Headers = []Header{}
	}
	return json.Marshal(out)
}
