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

// TraceParent is the header with the W3C trace parent of the read that requested the refresh. It is
// copied unchanged to the request's retries and to its dead letter.
const TraceParent = "traceparent"

// Headers that a dead letter adds to the headers of the original record.
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

// DeadLetterReason says why a request needs an operator.
type DeadLetterReason string

// The reasons; dead_letter.v1.schema.json describes each one.
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
	NotComputed     DeadLetterReason = "NOT_COMPUTED"
	// Outage is the reason of a retry after a failure that the source caused, and not the entity.
	// No dead letter has this reason.
	Outage DeadLetterReason = "UPSTREAM_OUTAGE"
)

// DeadLetterReasons lists the reasons that a dead letter can have.
var DeadLetterReasons = []DeadLetterReason{
	Undecodable, UnknownMajor, OversizedRecord, InvalidRequest, Upstream4xx, Upstream5xx, Unreachable, NotReady, ParseError, OversizedAnswer, Unstorable, NotComputed,
}

const (
	// MaxSampleBytes is the maximum size of the part of an upstream's response that a dead letter
	// stores.
	MaxSampleBytes = 16 << 10
	maxErrorBytes  = 4 << 10
)

// DeadLetter is a record that can't be processed without an operator. On the dead-letter topic it
// has the original key, value and headers, byte for byte, and its other fields as additional
// headers. MarshalJSON returns the form that tools print.
type DeadLetter struct {
	Key     []byte           `json:"key"`
	Value   []byte           `json:"value"`
	Headers []Header         `json:"headers"` // headers of the original record
	Reason  DeadLetterReason `json:"reason"`
	Error   string           `json:"error"`
	// Attempts is the number of upstream calls made for the request.
	Attempts  int       `json:"attempts"`
	Topic     string    `json:"topic"` // Topic, Partition and Offset locate the original record; Group and Worker name the consumer group and the worker that read it
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Group     string    `json:"group"`
	Worker    string    `json:"worker"`
	Time      time.Time `json:"time"`
	// Status is the HTTP status of the upstream's last answer; 0 if there was none.
	Status     int    `json:"status,omitempty"`
	Sample     []byte `json:"sample,omitempty"` // first bytes of the upstream's last response, decompressed
	SampleType string `json:"sampleType,omitempty"`
	// ValueBytes is the length of the original value if the dead letter was shortened, otherwise
	// 0. The whole value is at Topic, Partition and Offset until Kafka deletes it.
	ValueBytes int `json:"valueBytes,omitempty"`
}

// Cut returns a shortened dead letter that fits its topic. It keeps only the beginning of the value
// and the beginning of the key. It removes all original headers except the trace parent. Some
// records fit their request topic only because they are compressed well; without Cut their dead
// letters would be too large.
func (d DeadLetter) Cut() DeadLetter {
	d.ValueBytes = len(d.Value)
	d.Value = d.Value[:min(len(d.Value), MaxRecordBytes/2)]
	d.Key = d.Key[:min(len(d.Key), deadLetterRoom)]
	d.Headers = slices.DeleteFunc(slices.Clone(d.Headers), func(h Header) bool {
		return h.Key != TraceParent || len(h.Value) > maxErrorBytes
	})
	return d
}

// RecordHeaders returns the headers of the record on the dead-letter topic. The original headers
// come first, in their order, without headers that an earlier dead letter added. The headers that
// this dead letter adds follow. The sample of the upstream's response is cut to MaxSampleBytes, so
// that the dead letter fits its topic if the original record fitted the request topic.
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

// ParseDeadLetter parses a record of a dead-letter topic. It fails if the headers that a worker adds
// are missing or malformed, or if they state another major version of the schema.
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
		return DeadLetter{}, fmt.Errorf("not a dead letter of this release: header %s is %q, want \"1\"", headerSchema, own[headerSchema])
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

// MarshalJSON encodes the dead letter as in dead_letter.v1.schema.json: the fields, with byte
// strings in base64, and the decoded request. The request is null if the value can't be decoded.
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
