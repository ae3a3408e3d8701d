package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/servicetest"
)

// closedAddress returns an address at which nothing listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// newLoggedParts returns parts whose Redis and Kafka are not reachable, with a JSON log of this level.
func newLoggedParts(t *testing.T, level slog.Level, stderr io.Writer) parts {
	t.Helper()
	p := NewProcess(nil, io.Discard, stderr)
	made := parts{log: p.logger(t.Context(), LogConfig{Level: level, Format: "json"}, "worker")}
	made.registry, made.reg = newRegistry("")
	var err error
	if made.rdb, err = (RedisConfig{Mode: "single", Addresses: []string{closedAddress(t)}}).newClient(redisTimeout); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = made.rdb.Close() })
	made.kafka = []kgo.Opt{kgo.SeedBrokers(closedAddress(t))}
	if made.client, err = kgo.NewClient(made.kafkaClient("test")...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.client.Close)
	return made
}

// parseLines returns the JSON objects of a log, and fails the test for a line of another form.
func parseLines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(text) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Errorf("log line: got %q, want JSON", line)
		}
		all = append(all, one)
	}
	return all
}

// failConnections makes the Redis client, the Kafka client and Go's standard logger log messages.
func failConnections(ctx context.Context, p parts) {
	_ = p.rdb.Ping(ctx).Err()
	_ = p.client.Ping(ctx)
	log.Print("a message of the standard library")
}

func TestLogger_LogsLibrariesAtDebug(t *testing.T) {
	var text logBuffer
	p := newLoggedParts(t, slog.LevelDebug, &text)
	failConnections(t.Context(), p)
	found := map[string]bool{}
	for _, line := range parseLines(t, text.String()) {
		if line["level"] != "DEBUG" {
			t.Errorf("level: got %v in %v, want DEBUG", line["level"], line)
		}
		found[line["msg"].(string)] = true
	}
	for _, want := range []string{"redis client message", "kafka client message", "a message of the standard library"} {
		if !found[want] {
			t.Errorf("log: got %s, want a line %q", text.String(), want)
		}
	}
}

func TestLogger_DropsLibrariesAtInfo(t *testing.T) {
	var text logBuffer
	failConnections(t.Context(), newLoggedParts(t, slog.LevelInfo, &text))
	if text.String() != "" {
		t.Errorf("log: got %q, want nothing", text.String())
	}
}

func TestConditionsOnly_KeepsWarningsAndRecoveries(t *testing.T) {
	for level, want := range map[slog.Level][]string{
		slog.LevelInfo:  {"warned", "recovered"},
		slog.LevelDebug: {"detail", "started", "warned", "recovered"},
		slog.LevelError: nil,
	} {
		var text logBuffer
		log := slog.New(conditionsOnly{newLoggedParts(t, level, &text).log.Handler()}).With("source", "shop")
		log.Debug("detail")
		log.Info("started")
		log.Warn("warned")
		log.Info("recovered", "event", "redis_unreachable")
		var got []string
		for _, line := range parseLines(t, text.String()) {
			got = append(got, line["msg"].(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("level %v: got lines %q, want %q", level, got, want)
		}
	}
}

func TestLogger_IdentifiesProcessOnJSONLines(t *testing.T) {
	var text logBuffer
	newLoggedParts(t, slog.LevelInfo, &text).log.Info("one")
	line := parseLines(t, text.String())[0]
	for name, want := range map[string]string{"role": "worker", "instance": workerName(), "version": Version()} {
		if line[name] != want {
			t.Errorf("%s: got %v, want %s", name, line[name], want)
		}
	}
}

func TestLogger_KeepsTextLinesShort(t *testing.T) {
	var text logBuffer
	NewProcess(nil, io.Discard, &text).logger(t.Context(), LogConfig{Format: "text"}, "worker").Info("one")
	if strings.Contains(text.String(), "instance=") {
		t.Errorf("log: got %q, want no instance", text.String())
	}
}

func TestStartLine_NamesVersionSourcesAndBrokers(t *testing.T) {
	p := &Process{ConfigFile: "freshet.yaml"}
	config := Config{Log: LogConfig{Format: "text"}, Kafka: KafkaConfig{Brokers: []string{"b1:9092", "b2:9092"}}, Sources: map[string]SourceConfig{"shop": {}, "bank": {}}}
	var text logBuffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	log.Info("worker started", parts{config: config, startAttrs: p.startAttrs(config, "worker")}.startedWith("", "lane", "both")...)
	for _, want := range []string{"role=worker", "instance=" + workerName(), "version=" + Version(), "config=freshet.yaml", "brokers=b1:9092,b2:9092", "sources=bank,shop", "lane=both"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("start line: got %s, want %s", text.String(), want)
		}
	}
}

func TestCheckConnections_WarnsOncePerOutage(t *testing.T) {
	var text logBuffer
	p := newLoggedParts(t, slog.LevelInfo, &text)
	var conditions observe.Conditions
	for range 3 {
		p.checkConnections(t.Context(), &conditions)
	}
	got := map[string]int{}
	for _, line := range parseLines(t, text.String()) {
		got[line["msg"].(string)]++
	}
	for _, want := range []observe.Condition{redisUnreachable, kafkaUnreachable} {
		if got[want.Failing] != 1 {
			t.Errorf("lines %q: got %d, want 1", want.Failing, got[want.Failing])
		}
	}
}

func TestRun_LogsReasonAndWorkOfStop(t *testing.T) {
	var text logBuffer
	p := newLoggedParts(t, slog.LevelInfo, &text)
	settled := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "settled_total"}, []string{"end"})
	p.reg.MustRegister(settled)
	settled.WithLabelValues("changed").Add(5) // these 5 requests end before the stop, so the line "process stopped" must not count them
	ctx, cancel := context.WithCancelCause(t.Context())
	err := p.run(ctx, func(context.Context, parts) error {
		cancel(errors.New("terminated signal received"))
		servicetest.WaitFor(t, eventTimeout, "the line process stopping", func() bool { return strings.Contains(text.String(), "process stopping") })
		settled.WithLabelValues("touched").Add(2)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := map[any]map[string]any{}
	for _, line := range parseLines(t, text.String()) {
		lines[line["msg"]] = line
	}
	if got, want := lines["process stopping"]["reason"], "terminated signal received"; got != want {
		t.Errorf("reason: got %v, want %v", got, want)
	}
	if got, want := lines["process stopped"]["requests_settled"], 2.0; got != want {
		t.Errorf("settled during the stop: got %v, want %v", got, want)
	}
	if lines["process stopped"]["duration"] == nil {
		t.Errorf("stopped: got %v, want a duration", lines["process stopped"])
	}
}
