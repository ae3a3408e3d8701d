package e2e

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

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store/deadletters"
)

// kcatRecord is a line of kcat's JSON output.
type kcatRecord struct {
	Headers []string // names and values of the headers in turn: name, value, name, value
	Payload string
}

func (r kcatRecord) headers() map[string]string {
	all := map[string]string{}
	for i := 0; i+1 < len(r.Headers); i += 2 {
		all[r.Headers[i]] = r.Headers[i+1]
	}
	return all
}

// A generic tool can read the headers of dead letters, including the number of replays.
func TestDeadLetter_HeadersAreReadByKcat(t *testing.T) {
	t.Parallel()
	kcat := servicetest.Program(t, "kcat", "kcat")
	f := newFleet(t)
	f.control(simulator.Control{Faults: []simulator.Fault{{Key: "^dead", Kind: simulator.BadParameter}}})
	f.worker()
	api := f.query()
	f.read(api, append(harness.Keys("healthy", 30), "dead1", "dead2"), 8)
	f.until(2*timeout, "two dead letters", func() bool { return f.deadLetters() == 2 })
	f.until(timeout, "their entries in the index", func() bool { return f.one("SELECT count(*) FROM dead_letters") == 2 })
	f.replay(api, 0)
	f.until(2*timeout, "two more dead letters", func() bool { return f.deadLetters() == 4 })

	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, kcat, "-C", "-q", "-J", "-e", "-b", f.Broker, "-t", schemas.DeadLetterTopic(f.Source)).Output()
	if err != nil {
		t.Fatalf("kcat: %v", err)
	}
	replays := map[string]int{}
	for line := range bytes.Lines(out) {
		var record kcatRecord
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		expectHeaders(t, record)
		replays[record.headers()["__dlq.replay.count"]]++
	}
	equal(t, "dead letters that were not replayed", replays[""], 2)
	equal(t, "dead letters that were replayed once", replays["1"], 2)
}

func expectHeaders(t *testing.T, record kcatRecord) {
	t.Helper()
	headers := record.headers()
	for name, want := range map[string]string{"schema": "1", "reason": "UPSTREAM_4XX", "status": "400", "attempts": "2"} {
		equal(t, "header __dlq.errors."+name, headers["__dlq.errors."+name], want)
	}
	for _, name := range []string{"error", "topic", "partition", "offset", "group", "worker", "time", "sample", "sample.type"} {
		if headers["__dlq.errors."+name] == "" {
			t.Errorf("header __dlq.errors.%s: got none", name)
		}
	}
	if sample := headers["__dlq.errors.sample"]; !strings.Contains(sample, "OPENAPI00004") {
		t.Errorf("sample: got %q, want one with OPENAPI00004", sample)
	}
	if !strings.Contains(record.Payload, `"key":"dead`) {
		t.Errorf("payload: got %q, want the original request", record.Payload)
	}
}

// replay creates a DLQ job that replays all open dead letters. rate is the number of replays per
// second; 0 means the configured rate.
func (f *fleet) replay(api string, rate int) (j deadletters.Job) {
	f.Helper()
	body := fmt.Sprintf(`{"kind":"REPLAY","lane":"LOW","rate":%d}`, rate)
	req, err := http.NewRequestWithContext(f.Context(), http.MethodPost, api+"/admin/v1/dlq/"+f.Source+"/jobs", strings.NewReader(body))
	f.check(err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := f.client.Do(req)
	f.check(err)
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&j); err != nil || resp.StatusCode != http.StatusCreated {
		f.Fatalf("create a replay job: got %s, %v, want 201", resp.Status, err)
	}
	return j
}

// writeDeadLetters writes n dead letters to their topic and into the index, as workers do.
func (f *fleet) writeDeadLetters(n int) {
	f.Helper()
	client, err := f.ConnectKafka()
	f.check(err)
	defer client.Close()
	at := time.Now().Add(-time.Hour)
	var records []*kgo.Record
	for _, key := range harness.Keys("k", n) {
		r := schemas.UpdateRequest{
			EventID: key, Entity: schemas.Entity{Source: f.Source, Facet: "character", Key: key}, Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: at,
		}
		value, err := r.Encode()
		f.check(err)
		d := schemas.DeadLetter{Reason: schemas.Upstream5xx, Error: "status 500", Attempts: 4, Time: at, Status: 500}
		record := &kgo.Record{Topic: schemas.DeadLetterTopic(f.Source), Key: r.RecordKey(), Value: value}
		for _, h := range d.RecordHeaders() {
			record.Headers = append(record.Headers, kgo.RecordHeader(h))
		}
		records = append(records, record)
	}
	f.check(client.ProduceSync(f.Context(), records...).FirstErr())
	var entries pgx.Batch
	for i, r := range records {
		l := deadletters.DeadLetter{
			ID: deadletters.ID{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}, At: at,
			Entity: schemas.Entity{Source: f.Source, Facet: "character", Key: fmt.Sprint("k", i)}, Reason: schemas.Upstream5xx,
		}
		entries.Queue(deadletters.Insert, l.InsertArgs()...)
	}
	f.check(f.db.SendBatch(f.Context(), &entries).Close())
}

// The query service that runs the DLQ job is killed in the middle of a chunk of dead letters.
// Another query service continues the job. Each dead letter must be requested exactly once. The
// short form of the test has fewer dead letters and one kill.
func TestReplay_RequestsEachDeadLetterOnceAcrossKills(t *testing.T) {
	t.Parallel()
	deadLetters, kills := size(3_000, 10_000), size(1, 2)
	f := newFleet(t)
	f.writeDeadLetters(deadLetters)
	replayers := map[string]*harness.Process{} // query services by process id; the column holder of the DLQ job contains the id
	start := func() (api string) {
		p := f.queryProcess()
		replayers[fmt.Sprint(p.Process.Pid)] = p
		return p.URL()
	}
	start()
	job := f.replay(start(), 1000)
	f.killReplayers(replayers, kills, int64(deadLetters), func() { start() })

	f.until(2*time.Minute, "the end of the job", func() bool { return f.one("SELECT count(*) FROM dlq_jobs WHERE state = 'DONE'") == 1 })
	equal(t, "dead letters that are done", f.one("SELECT done FROM dlq_jobs"), int64(deadLetters))
	equal(t, "jobs with refused dead letters", f.one("SELECT count(*) FROM dlq_jobs WHERE refused::text <> '{}'"), 0)
	requested := f.replayed(job.ID)
	equal(t, "dead letters that were requested", len(requested), deadLetters)
	twice := 0
	for _, n := range requested {
		if n > 1 {
			twice++
		}
	}
	equal(t, "dead letters that were requested more than once", twice, 0)
	f.worker()
	f.untilStored(2*time.Minute, deadLetters)
	s := f.stats()
	equal(t, "calls", s.Arrivals, deadLetters)
	equal(t, "calls for one entity", s.MaxPerKeyAndPath, 1)
}

// killReplayers waits until the process that holds the DLQ job is in the middle of a chunk. Then it
// kills this process and starts another one. It does this `kills` times. Before each kill the job
// has replayed at least another thousand dead letters.
func (f *fleet) killReplayers(replayers map[string]*harness.Process, kills int, total int64, start func()) {
	f.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	killed, before := 0, int64(0)
	for deadline := time.Now().Add(2 * time.Minute); killed < kills; <-tick.C {
		var holder string
		var chunk, done int64
		f.check(f.db.QueryRow(f.Context(), "SELECT holder, chunk_started_at, done FROM dlq_jobs").Scan(&holder, &chunk, &done))
		if done == total || time.Now().After(deadline) {
			f.Fatalf("kills: got %d when %d of %d dead letters were done, want %d", killed, done, total, kills)
		}
		if parts := strings.Split(holder, "/"); chunk != 0 && done >= before+1000 && len(parts) > 1 && replayers[parts[1]] != nil {
			<-time.After(time.Duration(10*killed) * time.Millisecond)
			replayers[parts[1]].Kill()
			delete(replayers, parts[1])
			killed, before = killed+1, done
			start()
		}
	}
}

// replayed reads the LOW topic and returns how many records a DLQ job wrote for each dead letter.
func (f *fleet) replayed(job string) map[string]int {
	f.Helper()
	all, err := f.ReadTopic(f.Context(), schemas.RequestTopic(f.Source, schemas.Low))
	f.check(err)
	count := map[string]int{}
	for _, r := range all {
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers["__dlq.replay.id"] == job {
			count[headers["__dlq.replay.of"]]++
		}
	}
	return count
}
