package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
)

// TestKcatReadsTheHeadersOfDeadLetters: what a letter says is there for tools that know
// nothing of this product, also how often it was replayed.
func TestKcatReadsTheHeadersOfDeadLetters(t *testing.T) {
	t.Parallel()
	kcat := servicetest.Program(t, "kcat", "kcat")
	f := newFleet(t, false)
	f.muted = "dead letter"
	f.call(http.MethodPost, "/_control", simulator.Control{Faults: []simulator.Fault{{Key: "^dead", Kind: simulator.BadParameter}}}, nil)
	f.worker()
	api := f.query()
	f.ask(api, append(characters("well", 30), "dead1", "dead2"), 8)
	f.until(2*patience, "two letters", func() bool { return f.letters() == 2 })
	f.until(patience, "their entries", func() bool { return f.one("SELECT count(*) FROM dead_letters") == 2 })
	f.replay(api, 0)
	f.until(2*patience, "two more letters", func() bool { return f.letters() == 4 })

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, kcat, "-C", "-q", "-J", "-e", "-b", strings.Join(servicetest.Kafka(t), ","), "-t", schemas.DeadLetterTopic(f.source)).Output()
	if err != nil {
		t.Fatalf("kcat: %v", err)
	}
	counts := map[string]int{}
	for line := range bytes.Lines(out) {
		var record struct {
			Headers []string // name, value, name, value
			Payload string
		}
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		headers := map[string]string{}
		for i := 0; i+1 < len(record.Headers); i += 2 {
			headers[record.Headers[i]] = record.Headers[i+1]
		}
		for name, want := range map[string]string{
			"__dlq.errors.schema": "1", "__dlq.errors.reason": "UPSTREAM_4XX", "__dlq.errors.status": "400", "__dlq.errors.attempts": "2",
		} {
			if headers[name] != want {
				t.Errorf("header %s is %q, want %q", name, headers[name], want)
			}
		}
		for _, name := range []string{"error", "topic", "partition", "offset", "group", "worker", "time", "sample", "sample.type"} {
			if headers["__dlq.errors."+name] == "" {
				t.Errorf("there is no header __dlq.errors.%s", name)
			}
		}
		if !strings.Contains(headers["__dlq.errors.sample"], "OPENAPI00004") || !strings.Contains(record.Payload, `"key":"dead`) {
			t.Errorf("sample %q, payload %q", headers["__dlq.errors.sample"], record.Payload)
		}
		counts[headers["__dlq.replay.count"]]++
	}
	if counts[""] != 2 || counts["1"] != 2 {
		t.Errorf("letters by how often they were replayed: %v", counts)
	}
}

// replay has all open letters replayed, at so many a second, and returns the job.
func (f *fleet) replay(api string, rate int) (j store.LetterJob) {
	f.Helper()
	body := fmt.Sprintf(`{"kind":"REPLAY","lane":"LOW","rate":%d}`, rate)
	req, err := http.NewRequestWithContext(f.Context(), http.MethodPost, api+"/admin/v1/letters/"+f.source+"/jobs", strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := f.client.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&j); err != nil || resp.StatusCode != http.StatusCreated {
		f.Fatalf("%s, %v", resp.Status, err)
	}
	return j
}

// buryMany puts n letters on their topic and into the index, as workers do.
func (f *fleet) buryMany(n int) {
	f.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(servicetest.Kafka(f)...))
	if err != nil {
		f.Fatal(err)
	}
	defer client.Close()
	died := time.Now().Add(-time.Hour)
	var records []*kgo.Record
	for _, key := range characters("k", n) {
		r := schemas.UpdateRequest{
			EventID: key, Entity: schemas.Entity{Source: f.source, Facet: "character", Key: key}, Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: died,
		}
		value, err := r.Encode()
		if err != nil {
			f.Fatal(err)
		}
		d := schemas.DeadLetter{Reason: schemas.Upstream5xx, Error: "status 500", Attempts: 4, Time: died, Status: 500}
		record := &kgo.Record{Topic: schemas.DeadLetterTopic(f.source), Key: r.RecordKey(), Value: value}
		for _, h := range d.RecordHeaders() {
			record.Headers = append(record.Headers, kgo.RecordHeader(h))
		}
		records = append(records, record)
	}
	if err := client.ProduceSync(f.Context(), records...).FirstErr(); err != nil {
		f.Fatal(err)
	}
	var entries pgx.Batch
	for i, r := range records {
		l := store.Letter{
			LetterID: store.LetterID{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}, At: died,
			Entity: schemas.Entity{Source: f.source, Facet: "character", Key: fmt.Sprint("k", i)}, Reason: schemas.Upstream5xx,
		}
		entries.Queue(store.InsertLetter, l.LetterArgs()...)
	}
	if err := f.db.SendBatch(f.Context(), &entries).Close(); err != nil {
		f.Fatal(err)
	}
}

// TestAKilledReplayerAsksForEachOfTenThousandOnce kills the query service that replays, in
// the midst of what it asks for, as often as it takes; another goes on each time.
func TestAKilledReplayerAsksForEachOfTenThousandOnce(t *testing.T) {
	t.Parallel()
	const letters, kills = 10_000, 2
	f := newFleet(t, false)
	f.muted = "level=WARN"
	f.buryMany(letters)
	replayers := map[string]*process{} // by how they name themselves as holders
	start := func() (api string) {
		p := f.start(`query service is up.* listen=([0-9.:]+)`, "query", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
		replayers[fmt.Sprint(p.Process.Pid)] = p
		return "http://" + p.found
	}
	start()
	job := f.replay(start(), 1000)

	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	killed, doneBefore := 0, int64(0)
	for deadline := time.Now().Add(2 * time.Minute); killed < kills; <-look.C {
		var holder string
		var chunk, done int64
		if err := f.db.QueryRow(t.Context(), "SELECT holder, chunk_at, done FROM letter_jobs").Scan(&holder, &chunk, &done); err != nil {
			t.Fatal(err)
		}
		if done == letters || time.Now().After(deadline) {
			t.Fatalf("%d of %d are done, and %d were killed", done, letters, killed)
		}
		// In the midst of a chunk that has come some way.
		if parts := strings.Split(holder, "/"); chunk != 0 && done >= doneBefore+1000 && len(parts) > 1 && replayers[parts[1]] != nil {
			<-time.After(time.Duration(10*killed) * time.Millisecond)
			replayers[parts[1]].kill()
			delete(replayers, parts[1])
			killed, doneBefore = killed+1, done
			start()
		}
	}
	f.until(2*time.Minute, "the end of the job", func() bool { return f.one("SELECT count(*) FROM letter_jobs WHERE state = 'DONE'") == 1 })
	if done, refused := f.one("SELECT done FROM letter_jobs"), f.one("SELECT count(*) FROM letter_jobs WHERE refused::text <> '{}'"); done != letters || refused > 0 {
		t.Errorf("%d of %d are done", done, letters)
	}
	asked := f.marks(job.ID)
	twice := 0
	for _, n := range asked {
		if n > 1 {
			twice++
		}
	}
	if len(asked) != letters || twice > 0 {
		t.Errorf("%d of %d letters were asked for, %d of them more than once", len(asked), letters, twice)
	}
	f.worker()
	f.until(2*time.Minute, "a snapshot of each", func() bool { return f.one(storedPayloads) == letters })
	if s := f.stats(); s.Arrivals != letters || s.MaxPerKeyAndPath != 1 {
		t.Errorf("%d calls of the upstream, %d for one entity; want %d and 1", s.Arrivals, s.MaxPerKeyAndPath, letters)
	}
}

// marks reads the LOW topic, and returns how many records a job has put there for each
// letter.
func (f *fleet) marks(job string) map[string]int {
	f.Helper()
	topic := schemas.RequestTopic(f.source, schemas.Low)
	ends, err := f.admin.ListEndOffsets(f.Context(), topic)
	if err != nil {
		f.Fatal(err)
	}
	left := int64(0)
	for _, o := range ends.Offsets()[topic] {
		left += o.At
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(servicetest.Kafka(f)...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		f.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	marks := map[string]int{}
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			f.Fatalf("%d records are left: %v", left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			id, of := "", ""
			for _, h := range r.Headers {
				switch h.Key {
				case "__dlq.replay.id":
					id = string(h.Value)
				case "__dlq.replay.of":
					of = string(h.Value)
				}
			}
			if id == job {
				marks[of]++
			}
		})
	}
	return marks
}
