package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/topics"
)

// TestAMillionLettersAreListedAndPurgedInBoundedMemory by the command and by a query service,
// where FRESHET_TEST_MILLION is set: it takes minutes.
func TestAMillionLettersAreListedAndPurgedInBoundedMemory(t *testing.T) {
	if os.Getenv("FRESHET_TEST_MILLION") == "" {
		t.Skip("FRESHET_TEST_MILLION is not set")
	}
	const letters, mostMiB = 1_000_000, 128
	f := newFleet(t, false)
	f.buryTheSame(letters)
	server := f.start(`query service is up.* listen=([0-9.:]+)`, "query", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	before := peakOf(t, server.Process.Pid)
	look := func(what string, out *lineTally, args ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), f.binary, append(append([]string{"dlq"}, args...), "--addr", server.found)...)
		var errs bytes.Buffer
		c.Stdout, c.Stderr = out, &errs
		began := time.Now()
		if err := c.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, errs.String())
		}
		own, servers := c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10, peakOf(t, server.Process.Pid)
		t.Logf("%s: %v, %d MiB at most by the command, %d by the query service, which had %d", what, time.Since(began).Round(time.Second), own, servers, before)
		if own > mostMiB || servers > before+mostMiB {
			t.Errorf("%s took %d MiB, and %d of the query service", what, own, servers-before)
		}
	}
	var list, purge lineTally
	look("list", &list, "list", "--limit", "0", "-o", "jsonl")
	if list.lines != letters {
		t.Errorf("%d letters are listed", list.lines)
	}
	look("purge", &purge, "purge", "--yes")
	if !strings.Contains(purge.first, fmt.Sprintf("%d of %d letters are done with", letters, letters)) {
		t.Error(purge.first)
	}
	starts, ends, err := topics.Bounds(t.Context(), f.admin, schemas.DeadLetterTopic(f.source))
	if err != nil {
		t.Fatal(err)
	}
	left := f.letters()
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		left -= start.Offset
	})
	if n := f.one("SELECT count(*) FROM dead_letters"); n != 0 || left != 0 {
		t.Errorf("%d entries are left, and %d letters on the topic", n, left)
	}
}

// lineTally counts the lines that are written there, and keeps the beginning.
type lineTally struct {
	lines int
	first string
}

// Write never fails.
func (c *lineTally) Write(b []byte) (int, error) {
	c.lines += bytes.Count(b, []byte("\n"))
	c.first += string(b[:min(len(b), max(0, 1<<10-len(c.first)))])
	return len(b), nil
}

var peak = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakOf is the most memory that a process has had, in MiB.
func peakOf(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("the memory of another process is told by Linux: ", err)
	}
	m := peak.FindSubmatch(status)
	if m == nil {
		t.Fatalf("%s", status)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// buryTheSame puts n letters that nobody reads on their topic, and all into the index at once.
func (f *fleet) buryTheSame(n int) {
	f.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(servicetest.Kafka(f)...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		f.Fatal(err)
	}
	defer client.Close()
	topic := schemas.DeadLetterTopic(f.source)
	known, err := f.admin.ListTopics(f.Context(), topic)
	if err != nil {
		f.Fatal(err)
	}
	partitions := len(known[topic].Partitions)
	var failed sync.Map
	for i := range n {
		client.Produce(f.Context(), &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: []byte("{}")}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store("why", err)
			}
		})
	}
	if err := client.Flush(f.Context()); err != nil {
		f.Fatal(err)
	}
	if err, is := failed.Load("why"); is {
		f.Fatal(err)
	}
	died := time.Now().Add(-time.Hour).UnixMicro()
	if _, err := f.db.Exec(f.Context(), `INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, error, fingerprint, status, attempts, at, correlation_id)
		SELECT $1, n % $2::int, n / $2::int, $3, 'character', 'key-' || n, 'UPSTREAM_5XX', repeat('status 500 ', 30), 'f' || n % 40, 500, 4, $4::bigint + n, 'c-' || n FROM generate_series(0, $5::int - 1) n`,
		topic, partitions, f.source, died, n); err != nil {
		f.Fatal(err)
	}
}
