package topics

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/schemas"
)

// fakeKafka starts an embedded Kafka cluster whose responses a test can replace. It returns the cluster
// and a client.
func fakeKafka(t *testing.T, brokers int) (*kfake.Cluster, *kadm.Client) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return cluster, kadm.NewClient(client)
}

// fail makes the cluster answer the next n requests of a kind with the result of response.
func fail(cluster *kfake.Cluster, kind kmsg.Key, n int64, response func(kmsg.Request) kmsg.Response) {
	var left atomic.Int64
	left.Store(n)
	cluster.ControlKey(int16(kind), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if left.Add(-1) < 0 {
			return nil, nil, false
		}
		return response(req), nil, true
	})
}

func TestEnsure_NamesTheTopicThatFails(t *testing.T) {
	cluster, admin := fakeKafka(t, 1)
	fail(cluster, kmsg.CreateTopics, 1, func(req kmsg.Request) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		topic := kmsg.NewCreateTopicsResponseTopic()
		topic.Topic, topic.ErrorCode = req.(*kmsg.CreateTopicsRequest).Topics[0].Topic, kerr.PolicyViolation.Code
		resp.Topics = append(resp.Topics, topic)
		return resp
	})
	name := schemas.Topics("nexon")[0].Name
	if _, err := Ensure(t.Context(), admin, "nexon", Replication{}); !errors.Is(err, kerr.PolicyViolation) || !strings.Contains(err.Error(), "topic "+name+": create: ") {
		t.Errorf("creation refused: got %v, want the topic %s and its error", err, name)
	}
	if all, err := Ensure(t.Context(), admin, "nexon", Replication{}); err != nil || !all[0].Created {
		t.Errorf("creation allowed: got %+v, %v, want the topics created", all, err)
	}
	fail(cluster, kmsg.DescribeConfigs, 1, func(req kmsg.Request) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		resource := kmsg.NewDescribeConfigsResponseResource()
		resource.ResourceType, resource.ResourceName, resource.ErrorCode = kmsg.ConfigResourceTypeTopic, name, kerr.TopicAuthorizationFailed.Code
		resp.Resources = append(resp.Resources, resource)
		return resp
	})
	if _, err := Ensure(t.Context(), admin, "nexon", Replication{}); !errors.Is(err, kerr.TopicAuthorizationFailed) || !strings.Contains(err.Error(), "topic "+name+": describe its configuration: ") {
		t.Errorf("configuration not readable: got %v, want the topic %s and its error", err, name)
	}
	_, unused := fakeKafka(t, 1)
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := Ensure(ended, unused, "nexon", Replication{}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "list Kafka brokers") {
		t.Errorf("no broker answers: got %v, want the failed request", err)
	}
}

// unserved answers a request for offsets like a broker that does not know yet that it is the leader of
// a partition.
func unserved(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, of := range req.(*kmsg.ListOffsetsRequest).Topics {
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = of.Topic
		for _, p := range of.Partitions {
			partition := kmsg.NewListOffsetsResponseTopicPartition()
			partition.Partition, partition.ErrorCode = p.Partition, kerr.UnknownServerError.Code
			topic.Partitions = append(topic.Partitions, partition)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func TestEnsure_WaitsUntilTopicsAreServed(t *testing.T) {
	cluster, admin := fakeKafka(t, 1)
	fail(cluster, kmsg.ListOffsets, 2, unserved)
	if all, err := Ensure(t.Context(), admin, "nexon", Replication{}); err != nil || len(all) != len(schemas.Topics("nexon")) {
		t.Errorf("served after two requests: got %+v, %v, want the topics", all, err)
	}

	cluster, admin = fakeKafka(t, 1)
	fail(cluster, kmsg.ListOffsets, 1<<40, unserved)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := Ensure(ctx, admin, "nexon", Replication{}); err == nil || !strings.Contains(err.Error(), "was created, but no broker serves it yet") {
		t.Errorf("never served: got %v, want the topic that is not served", err)
	}
}

func TestEnsure_ReportsTooFewReplicas(t *testing.T) {
	_, admin := fakeKafka(t, 3)
	name := schemas.RequestTopic("nexon", schemas.High)
	if _, err := admin.CreateTopic(t.Context(), 12, 1, nil, name); err != nil {
		t.Fatal(err)
	}
	all, err := Ensure(t.Context(), admin, "nexon", Replication{Factor: 3, MinInsync: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range all {
		if drift := strings.Join(topic.Drift, "\n"); topic.Name == name && !strings.Contains(drift, "has 1 replicas, the design says 3") {
			t.Errorf("%s: got the drift %q, want its replicas", name, drift)
		}
	}
}

func TestMeasure_NamesWhatFails(t *testing.T) {
	cluster, admin := fakeKafka(t, 1)
	if err := Measure(t.Context(), admin, "nobody")["nobody"].DeadLettersErr; err == nil || !strings.Contains(err.Error(), schemas.DeadLetterTopic("nobody")) || !strings.Contains(err.Error(), "freshet topics ensure") {
		t.Errorf("dead letters without a topic: got %v, want the topic and the command that creates it", err)
	}
	if _, err := Ensure(t.Context(), admin, "nexon", Replication{}); err != nil {
		t.Fatal(err)
	}
	fail(cluster, kmsg.OffsetFetch, 1, func(req kmsg.Request) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		for _, g := range req.(*kmsg.OffsetFetchRequest).Groups {
			group := kmsg.NewOffsetFetchResponseGroup()
			group.Group, group.ErrorCode = g.Group, kerr.GroupAuthorizationFailed.Code
			resp.Groups = append(resp.Groups, group)
		}
		return resp
	})
	group := schemas.Group("nexon", schemas.High)
	if err := Measure(t.Context(), admin, "nexon")["nexon"].LagErr; !errors.Is(err, kerr.GroupAuthorizationFailed) || !strings.Contains(err.Error(), group) {
		t.Errorf("offsets not readable: got %v, want the group %s and its error", err, group)
	}
	if b := Measure(t.Context(), admin, "nexon")["nexon"]; b.LagErr != nil || len(b.Lags) != 2 {
		t.Errorf("offsets readable: got %+v, want two lanes", b)
	}
}

func TestMeasure_ReadsAllSourcesTogether(t *testing.T) {
	cluster, admin := fakeKafka(t, 1)
	for _, source := range []string{"nexon", "github"} {
		if _, err := Ensure(t.Context(), admin, source, Replication{}); err != nil {
			t.Fatal(err)
		}
	}
	var fetches, lists atomic.Int64
	for kind, n := range map[kmsg.Key]*atomic.Int64{kmsg.OffsetFetch: &fetches, kmsg.ListOffsets: &lists} {
		cluster.ControlKey(int16(kind), func(kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			n.Add(1)
			return nil, nil, false
		})
	}
	for source, b := range Measure(t.Context(), admin, "nexon", "github") {
		if b.LagErr != nil || b.DeadLettersErr != nil {
			t.Fatalf("%s: %v, %v", source, b.LagErr, b.DeadLettersErr)
		}
	}
	if fetches.Load() != 1 || lists.Load() != 2 {
		t.Errorf("got %d OffsetFetch and %d ListOffsets requests, want 1 and 2", fetches.Load(), lists.Load())
	}
}

// The values of a sampler are known for the time sampleTTL after its last sample.
func TestSampler_ValuesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSampler(nil, []string{"nexon"}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		check := func(when string, want Lag, wantKnown bool, wantRate float64, wantBusy time.Duration) {
			t.Helper()
			lag, at, known := s.Latest("nexon", schemas.Low)
			records, recordsKnown := s.Records("nexon", schemas.Low)
			if lag != want || known != wantKnown || recordsKnown != wantKnown || records != want.Records || at.IsZero() == wantKnown {
				t.Errorf("%s: got %+v at %v, known %v, %d records, known %v, want %+v, known %v", when, lag, at, known, records, recordsKnown, want, wantKnown)
			}
			if rate, busy := s.Throughput("nexon", schemas.Low, time.Time{}); rate != wantRate || busy != wantBusy {
				t.Errorf("%s: got %v records/s in %v, want %v in %v", when, rate, busy, wantRate, wantBusy)
			}
		}
		check("before the first sample", Lag{}, false, 0, 0)
		for _, committed := range []int64{100, 150, 200} {
			s.Record(time.Now(), []Lag{{Source: "nexon", Lane: schemas.Low, Records: 9, Committed: committed}})
			<-time.After(sampleInterval)
		}
		check("after three samples", Lag{Records: 9, Committed: 200}, true, 10, sampleInterval) // the rate is that of the last 50 records, which took one interval
		<-time.After(sampleTTL)
		check("after an outage", Lag{}, false, 10, sampleInterval)
	})
}

func TestSampler_LogsAnErrorOfAllSourcesOnce(t *testing.T) {
	var text bytes.Buffer
	s := NewSampler(nil, []string{"nexon", "github"}, slog.New(slog.NewTextHandler(&text, nil)), prometheus.NewRegistry())
	down := errors.New("no broker answers")
	s.measure = func(_ context.Context, sources ...string) map[string]Backlog {
		all := map[string]Backlog{}
		for _, source := range sources {
			all[source] = Backlog{LagErr: down}
		}
		return all
	}
	s.sample(t.Context())
	if got := strings.Count(text.String(), down.Error()); got != 1 {
		t.Errorf("the error in the log: got it %d times, want once:\n%s", got, text.String())
	}
}
