package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/topics"
)

// maxMiB is the maximum memory that `freshet dlq` may use for a million dead letters. It is also the
// maximum by which the memory of the query service may grow during the command.
const maxMiB = 128

func TestDLQ_ListsAndPurgesAMillionInBoundedMemory(t *testing.T) {
	longOnly(t)
	const deadLetters = 1_000_000
	f := newFleet(t)
	f.writeEqualDeadLetters(deadLetters)
	server := f.queryProcess()
	list, purge := f.runDLQ(server, "list", "--limit", "0", "-o", "jsonl"), f.runDLQ(server, "purge", "--yes")
	equal(t, "dead letters in the list", list.lines, deadLetters)
	if want := fmt.Sprintf("%d of %d dead letters purged", deadLetters, deadLetters); !strings.Contains(purge.first, want) {
		t.Errorf("output of purge: got %q, want %q in it", purge.first, want)
	}
	starts, ends, err := topics.Bounds(t.Context(), f.admin, schemas.DeadLetterTopic(f.Source))
	f.check(err)
	left := int64(f.deadLetters())
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		left -= start.Offset
	})
	equal(t, "dead letters left on the topic", left, 0)
	equal(t, "dead letters left in the index", f.one("SELECT count(*) FROM dead_letters"), 0)
}

// runDLQ runs `freshet dlq` against a query service, and checks the memory of the command and of
// the query service.
func (f *fleet) runDLQ(server *harness.Process, args ...string) (out lineTally) {
	f.Helper()
	peak := func() int64 {
		n, err := harness.PeakMemory(server.Process.Pid)
		f.check(err)
		return n >> 20
	}
	env, err := f.Configure("operator", f.Broker, "")
	f.check(err)
	before, began := peak(), time.Now()
	c := exec.CommandContext(f.Context(), f.Binary, append(append([]string{"dlq"}, args...), "--addr", server.Match)...)
	var errs bytes.Buffer
	c.Env, c.Stdout, c.Stderr = append(c.Environ(), env...), &out, &errs
	if err := c.Run(); err != nil {
		f.Fatalf("freshet dlq %v: %v\n%s", args, err, errs.String())
	}
	own := c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss >> 10
	f.Logf("dlq %s: %v, at most %d MiB by the command, %d by the query service, which had %d", args[0], time.Since(began).Round(time.Second), own, peak(), before)
	atMost(f, "MiB of the command", own, maxMiB)
	atMost(f, "further MiB of the query service", peak()-before, maxMiB)
	return out
}

// lineTally counts the lines of an output and keeps its first KiB.
type lineTally struct {
	lines int
	first string
}

// Write implements io.Writer. It never fails.
func (c *lineTally) Write(b []byte) (int, error) {
	c.lines += bytes.Count(b, []byte("\n"))
	c.first += string(b[:min(len(b), max(0, 1<<10-len(c.first)))])
	return len(b), nil
}

// writeEqualDeadLetters writes n dead letters with the same invalid request to their topic. It
// inserts their rows into the index with one statement.
func (f *fleet) writeEqualDeadLetters(n int) {
	f.Helper()
	client, err := f.ConnectKafka(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(50_000))
	f.check(err)
	defer client.Close()
	topic := schemas.DeadLetterTopic(f.Source)
	known, err := f.admin.ListTopics(f.Context(), topic)
	f.check(err)
	partitions := len(known[topic].Partitions)
	var failed sync.Map
	for i := range n {
		client.Produce(f.Context(), &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: []byte("{}")}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store("why", err)
			}
		})
	}
	f.check(client.Flush(f.Context()))
	if err, is := failed.Load("why"); is {
		f.Fatal(err)
	}
	at := time.Now().Add(-time.Hour).UnixMicro()
	if _, err := f.db.Exec(f.Context(), `INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, error, fingerprint, status, attempts, at, correlation_id)
		SELECT $1, n % $2::int, n / $2::int, $3, 'character', 'key-' || n, 'UPSTREAM_5XX', repeat('status 500 ', 30), 'f' || n % 40, 500, 4, $4::bigint + n, 'c-' || n FROM generate_series(0, $5::int - 1) n`,
		topic, partitions, f.Source, at, n); err != nil {
		f.Fatal(err)
	}
}
