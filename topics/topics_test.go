package topics

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

func eachKafka(t *testing.T, test func(t *testing.T, client *kgo.Client, admin *kadm.Client)) {
	t.Helper()
	run := func(t *testing.T, brokers []string) {
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		test(t, client, kadm.NewClient(client))
	}
	t.Run("kfake", func(t *testing.T) {
		c, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		run(t, c.ListenAddrs())
	})
	t.Run("kafka", func(t *testing.T) { run(t, servicetest.Kafka(t)) })
}

func TestEnsure_CreatesTopicsOnce(t *testing.T) {
	eachKafka(t, func(t *testing.T, _ *kgo.Client, admin *kadm.Client) {
		source := servicetest.Name("nexon")
		for round := range 2 {
			got, err := Ensure(t.Context(), admin, source, Replication{})
			if err != nil || len(got) != 5 {
				t.Fatalf("round %d: %+v, %v", round, got, err)
			}
			for _, topic := range got {
				if topic.Created != (round == 0) || len(topic.Drift) > 0 {
					t.Errorf("round %d: %+v", round, topic)
				}
			}
		}
		for _, want := range schemas.Topics(source) {
			configs, err := admin.DescribeTopicConfigs(t.Context(), want.Name)
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, c := range configs[0].Configs {
				if c.Key == "retention.ms" && c.MaybeValue() == "86400000" || c.Key == "max.message.bytes" && c.MaybeValue() == "1048576" {
					found++
				}
			}
			if want.Name == schemas.RequestTopic(source, schemas.High) && found != 2 {
				t.Errorf("%s has other settings: %+v", want.Name, configs[0].Configs)
			}
		}
	})
}

func TestEnsure_ReportsDriftWithoutChanging(t *testing.T) {
	eachKafka(t, func(t *testing.T, _ *kgo.Client, admin *kadm.Client) {
		source := servicetest.Name("nexon")
		retention, times := "1000000", "LogAppendTime"
		if _, err := admin.CreateTopic(t.Context(), 3, 1, map[string]*string{"retention.ms": &retention, "message.timestamp.type": &times}, schemas.DeadLetterTopic(source)); err != nil {
			t.Fatal(err)
		}
		got, err := Ensure(t.Context(), admin, source, Replication{})
		if err != nil {
			t.Fatal(err)
		}
		drift := strings.Join(got[2].Drift, "\n")
		for _, mention := range []string{"has 3 partitions, the design says 12", "has retention.ms=1000000, the design says 604800000", "has message.timestamp.type=LogAppendTime, the design says CreateTime", "max.message.bytes"} {
			if !strings.Contains(drift, mention) {
				t.Errorf("%q does not mention %q", drift, mention)
			}
		}
		if _, err := Ensure(t.Context(), admin, source, Replication{Factor: 9}); err == nil || !strings.Contains(err.Error(), "only 1 brokers") {
			t.Errorf("nine replicas on one broker: %v", err)
		}
	})
}

func TestMeasure_CountsUncommittedRecords(t *testing.T) {
	eachKafka(t, func(t *testing.T, client *kgo.Client, admin *kadm.Client) {
		source := servicetest.Name("nexon")
		if err := Measure(t.Context(), admin, "nobody")["nobody"].LagErr; err == nil || !strings.Contains(err.Error(), "freshet topics ensure") {
			t.Errorf("without topics: got %v", err)
		}
		if _, err := Ensure(t.Context(), admin, source, Replication{}); err != nil {
			t.Fatal(err)
		}
		topic, group := schemas.RequestTopic(source, schemas.Low), schemas.Group(source, schemas.Low)
		for range 10 {
			if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x"), Key: []byte("one partition")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		check := func(records, committed int64) {
			t.Helper()
			var lags []Lag
			deadline := time.Now().Add(30 * time.Second)
			for lags == nil {
				b := Measure(t.Context(), admin, "nobody", source)[source]
				var err error
				lags, err = b.Lags, b.LagErr
				// A new broker creates its internal topic of group offsets at the first request,
				// and refuses requests until the topic exists.
				if err != nil && (!errors.Is(err, kerr.CoordinatorNotAvailable) || time.Now().After(deadline)) {
					t.Fatal(err)
				}
			}
			if lags[0].Lane != schemas.High || lags[0].Records != 0 || lags[1].Records != records || lags[1].Committed != committed {
				t.Errorf("%+v, want %d behind after %d", lags, records, committed)
			}
		}
		check(10, 0)
		ends, err := admin.ListEndOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		offsets := kadm.Offsets{}
		ends.Each(func(o kadm.ListedOffset) {
			if o.Offset == 10 {
				offsets.AddOffset(topic, o.Partition, 7, -1)
			}
		})
		if err := admin.CommitAllOffsets(t.Context(), group, offsets); err != nil {
			t.Fatal(err)
		}
		check(3, 7)

		deadLetters := schemas.DeadLetterTopic(source)
		for _, key := range []string{"a", "b", "c"} {
			if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: deadLetters, Key: []byte(key)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if b := Measure(t.Context(), admin, "nobody", source)[source]; b.DeadLettersErr != nil || b.DeadLetters != 3 {
			t.Errorf("%d dead letters, %v; there are 3", b.DeadLetters, b.DeadLettersErr)
		}
	})
}

func TestSampler_EstimatesWaitFromSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lag []Lag
		var fails error
		set := func(l []Lag, err error) {
			mu.Lock()
			defer mu.Unlock()
			lag, fails = l, err
		}
		reg := prometheus.NewRegistry()
		s := NewSampler(nil, []string{"nexon"}, slog.New(slog.DiscardHandler), reg)
		s.measure = func(context.Context, ...string) map[string]Backlog {
			mu.Lock()
			defer mu.Unlock()
			return map[string]Backlog{"nexon": {Lags: lag, LagErr: fails, DeadLetters: 7}}
		}
		wantKnown := func(lags, deadLetters int) {
			t.Helper()
			synctest.Wait()
			for name, want := range map[string]int{"kafka_consumer_lag": lags, "dlq_message_count": deadLetters} {
				if n, err := testutil.GatherAndCount(reg, name); err != nil || n != want {
					t.Errorf("%d series of %s, %v; want %d", n, name, err, want)
				}
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		high := Lag{Source: "nexon", Lane: schemas.High, Topic: schemas.RequestTopic("nexon", schemas.High), Group: schemas.Group("nexon", schemas.High)}
		high.Records = 500
		set([]Lag{high}, nil)
		go func() { done <- s.Run(ctx) }()
		wait := func() (time.Duration, bool) {
			synctest.Wait()
			return s.EstimateWait("nexon", schemas.High)
		}
		next := func(records, committed int64) {
			high.Records, high.Committed = records, committed
			set([]Lag{high}, nil)
			<-time.After(sampleInterval)
		}

		if w, known := wait(); known {
			t.Errorf("got %v from one sample, want unknown", w)
		}
		next(500, 0)
		if w, known := wait(); known {
			t.Errorf("got %v without commits, want unknown", w)
		}
		next(400, 100) // 100 records were committed in 10 s, so 400 records take 40 s
		if w, known := wait(); !known || w != 40*time.Second {
			t.Errorf("wait: got %v, known %v, want 40s", w, known)
		}
		next(0, 500)
		if w, known := wait(); known {
			t.Errorf("got %v without a backlog, want unknown", w)
		}
		next(100, 600)
		if w, known := wait(); !known || w != 10*time.Second { // the estimate ignores the time in which no record waited
			t.Errorf("wait: got %v, known %v, want 10s", w, known)
		}
		set(nil, errors.New("Kafka is away"))
		<-time.After(2 * sampleInterval)
		if _, known := wait(); !known {
			t.Error("got unknown after one failed sample")
		}
		wantKnown(1, 1)
		<-time.After(sampleTTL)
		if w, known := wait(); known {
			t.Errorf("got %v from an old sample, want unknown", w)
		}
		wantKnown(0, 1) // no lag is reported, because the last sample is too old
		if _, known := s.EstimateWait("github", schemas.High); known {
			t.Error("got a wait for a source without samples")
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestSampler_StalledForUsesSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSampler(nil, []string{"nexon"}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		for i, c := range []struct {
			records, committed int64
			want               time.Duration
		}{
			{0, 40, 0},
			{7, 40, 0}, // the records arrived after the previous sample, so they have not waited yet
			{7, 40, 5 * time.Second},
			{9, 40, 10 * time.Second},
			{8, 41, 0}, // a record was committed since the previous sample, so the lane is not stalled
			{8, 41, 5 * time.Second},
			{0, 49, 0},
		} {
			<-time.After(sampleInterval)
			s.Record(time.Now(), []Lag{{Source: "nexon", Lane: schemas.Low, Records: c.records, Committed: c.committed}})
			if got := s.StalledFor("nexon", schemas.Low); got != c.want {
				t.Errorf("sample %d: %v", i, got)
			}
		}
		for range 30 {
			<-time.After(sampleInterval)
			s.Record(time.Now(), []Lag{{Source: "nexon", Lane: schemas.Low, Records: 8, Committed: 41}})
		}
		if got := s.StalledFor("nexon", schemas.Low); got < sampleWindow {
			t.Errorf("after minutes: %v", got)
		}
		<-time.After(sampleTTL + time.Second)
		if got := s.StalledFor("nexon", schemas.Low); got != 0 {
			t.Errorf("from an old sample: %v", got)
		}
	})
}

func TestSampler_LogsFailuresAndExpiresGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		reg := prometheus.NewRegistry()
		s := NewSampler(nil, []string{"nexon"}, slog.New(slog.NewTextHandler(&text, nil)), reg)
		var lettersFail, lagFails error
		s.measure = func(context.Context, ...string) map[string]Backlog {
			lags := []Lag{{Source: "nexon", Lane: schemas.High, Topic: "t", Group: "g"}}
			return map[string]Backlog{"nexon": {Lags: lags, LagErr: lagFails, DeadLetters: 7, DeadLettersErr: lettersFail}}
		}
		said := func(lag, deadLetters int) {
			t.Helper()
			for what, want := range map[string]int{"lag can't be measured": lag, "dead letters can't be counted": deadLetters} {
				if n := strings.Count(text.String(), what); n != want {
					t.Errorf("%q: logged %d times, want %d", what, n, want)
				}
			}
		}
		s.sample(t.Context())
		lettersFail = errors.New("there is no such topic")
		for range 3 {
			s.sample(t.Context())
		}
		said(0, 1)
		if n, err := testutil.GatherAndCount(reg, "dlq_message_count"); n != 1 || err != nil {
			t.Errorf("after a moment: %d, %v", n, err)
		}
		lagFails = errors.New("Kafka is away")
		<-time.After(sampleTTL + time.Second)
		for range 3 {
			s.sample(t.Context())
		}
		said(1, 1)
		if n, err := testutil.GatherAndCount(reg, "dlq_message_count"); n != 0 || err != nil {
			t.Errorf("got the gauge of an old count: %d, %v", n, err)
		}
		lagFails, lettersFail = nil, nil
		<-time.After(sampleInterval)
		s.sample(t.Context())
		lagFails = errors.New("again")
		s.sample(t.Context())
		said(2, 1)
	})
}
