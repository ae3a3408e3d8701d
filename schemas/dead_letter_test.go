package schemas

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func exampleDeadLetter(t *testing.T) DeadLetter {
	t.Helper()
	value, err := os.ReadFile("golden/update_request/v2.0-full.json")
	if err != nil {
		t.Fatal(err)
	}
	return DeadLetter{
		Key: []byte("character/90f1a2b3c4d5e6f7"), Value: value,
		Headers: []Header{{"traceparent", []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")}, {"odd", []byte{0xff, 0}}},
		Reason:  Upstream5xx, Error: "503 Service Unavailable", Attempts: 3,
		Topic: "nexon.update-priority-high", Partition: 17, Offset: 1 << 40, Group: "nexon.high-worker", Worker: "worker-1",
		Time: time.Date(2026, 1, 27, 12, 0, 0, 5, time.UTC), Status: 503,
		Sample: []byte("<html>"), SampleType: "text/html",
	}
}

func TestDeadLetter_RoundTripsByteForByte(t *testing.T) {
	want := exampleDeadLetter(t)
	got, err := ParseDeadLetter(want.Key, want.Value, want.RecordHeaders())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

func TestDeadLetter_RoundTripsWithoutAnswer(t *testing.T) {
	want := DeadLetter{Reason: Undecodable, Error: "x", Topic: "t", Time: time.Unix(1, 0).UTC()}
	got, err := ParseDeadLetter(nil, nil, want.RecordHeaders())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestDeadLetter_OwnHeadersFitTopic(t *testing.T) {
	d := exampleDeadLetter(t)
	d.Headers = nil
	d.Error = strings.Repeat("유", 100_000)
	d.Sample = make([]byte, 1<<20)
	d.SampleType = strings.Repeat("t", 1<<20)
	size := 0
	for _, h := range d.RecordHeaders() {
		size += len(h.Key) + len(h.Value) + 10 // 10 bytes are an upper bound for the two length fields of a header
		if h.Key == headerError && strings.ContainsRune(string(h.Value), '\ufffd') {
			t.Error("the error was cut inside a character")
		}
	}
	if size > deadLetterRoom {
		t.Errorf("own headers take %d bytes; the topic has room for %d", size, deadLetterRoom)
	}
}

func TestDeadLetter_CutFitsTopic(t *testing.T) {
	d := exampleDeadLetter(t)
	d.Value, d.Key = make([]byte, 10<<20), make([]byte, 1<<20)
	d.Headers = append(d.Headers, Header{"huge", make([]byte, 1<<20)})
	cut := d.Cut()
	size := len(cut.Value) + len(cut.Key)
	for _, h := range cut.RecordHeaders() {
		size += len(h.Key) + len(h.Value) + 10
	}
	if size > MaxRecordBytes {
		t.Errorf("a shortened dead letter has %d bytes", size)
	}
	got, err := ParseDeadLetter(cut.Key, cut.Value, cut.RecordHeaders())
	if err != nil || got.ValueBytes != 10<<20 || got.Headers[0].Key != TraceParent || len(got.Headers) != 1 || got.Offset != d.Offset {
		t.Errorf("valueBytes: got %+v, %v", got.ValueBytes, err)
	}
	if len(d.Value) != 10<<20 || len(d.Headers) != 3 {
		t.Error("Cut changed the original dead letter")
	}
}

func TestDeadLetter_ReplacesHeadersOfEarlierOne(t *testing.T) {
	d := exampleDeadLetter(t)
	d.Headers = append(d.Headers, Header{headerReason, []byte("PARSE_ERROR")})
	got, err := ParseDeadLetter(d.Key, d.Value, d.RecordHeaders())
	if err != nil || got.Reason != Upstream5xx || len(got.Headers) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseDeadLetter_RejectsOtherRecords(t *testing.T) {
	broken := exampleDeadLetter(t).RecordHeaders()
	for i := range broken {
		if broken[i].Key == headerOffset {
			broken[i].Value = []byte("12a")
		}
	}
	for name, headers := range map[string][]Header{
		"no headers":  nil,
		"other major": {{headerSchema, []byte("2")}},
		"odd offset":  broken,
	} {
		if _, err := ParseDeadLetter(nil, nil, headers); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDeadLetter_JSONFitsSchemaAndGolden(t *testing.T) {
	schema := compile(t, "dead_letter.v1.schema.json")
	undecodable := exampleDeadLetter(t)
	undecodable.Value, undecodable.Headers, undecodable.Status, undecodable.Sample = []byte{0xff}, nil, 0, nil
	undecodable.SampleType, undecodable.Reason, undecodable.Attempts = "", Undecodable, 0
	for file, d := range map[string]DeadLetter{
		"golden/dead_letter/upstream-5xx.json": exampleDeadLetter(t),
		"golden/dead_letter/undecodable.json":  undecodable,
	} {
		got, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(t, schema, got); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got)+"\n" != string(want) {
			t.Errorf("%s differs; got\n%s", file, got)
		}
	}
}

func TestDeadLetterReasons_AreInSchema(t *testing.T) {
	text, err := os.ReadFile("dead_letter.v1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	reasons := []DeadLetterReason{
		Undecodable, UnknownMajor, OversizedRecord, InvalidRequest, Upstream4xx,
		Upstream5xx, Unreachable, NotReady, ParseError, OversizedAnswer, Unstorable, NotComputed,
	}
	for _, r := range reasons {
		if !strings.Contains(string(text), `"const": "`+string(r)+`", "description"`) {
			t.Errorf("%s is not in the schema", r)
		}
	}
	if n := strings.Count(string(text), `"const"`); n != len(reasons) {
		t.Errorf("the schema knows %d reasons, this test %d", n, len(reasons))
	}
}
