package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store/deadletters"
)

// setUpstreamFailing makes the upstream reject all keys with the prefix "bad" permanently if the
// parameter is true, and accept all keys if it is false.
func (d *dev) setUpstreamFailing(failing bool) {
	d.Helper()
	c := simulator.Control{Faults: []simulator.Fault{}}
	if failing {
		c.Faults = []simulator.Fault{{Key: "^bad", Kind: simulator.BadParameter}}
	}
	text, err := json.Marshal(c)
	if err != nil {
		d.Fatal(err)
	}
	req, err := http.NewRequestWithContext(d.Context(), http.MethodPost, d.upstream+"/_control", bytes.NewReader(text))
	if err != nil {
		d.Fatal(err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= 300 {
		d.Fatalf("status: got %s, want one below 300", resp.Status)
	}
}

// waitForDeadLetters reads n keys that the upstream rejects, and waits until their requests are
// dead letters. It reads other keys as well: their success shows that the upstream is healthy, so
// each failure counts for its key and not for the upstream.
func (d *dev) waitForDeadLetters(prefix string, n int) {
	d.Helper()
	d.setUpstreamFailing(true)
	for _, key := range append(characters("bad-"+prefix, n), characters(prefix, 30)...) {
		d.do(http.MethodGet, d.api+"/v1/nexon/character/"+key)
	}
	for since := time.Now(); strings.Count(d.mustRun(0, nil, "dlq", "list", "-o", "jsonl"), "\n") != n; <-time.After(100 * time.Millisecond) {
		if time.Since(since) > 2*eventTimeout {
			d.Fatalf("dead letters: got\n%s\nwant %d", d.mustRun(0, nil, "dlq", "list"), n)
		}
	}
	d.setUpstreamFailing(false)
}

func TestDLQ_ListShowReplayPurge(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--no-demo", "--simulate", "--config", smallDocument(t))
	d.mustRun(0, []string{"no dead letters\n"}, "dlq", "list")
	d.mustRun(0, []string{"no dead letters\n"}, "dlq", "list", "--group", "--since", "24h")
	for _, list := range [][]string{{"list"}, {"list", "--group"}, {"jobs"}} {
		if text := d.mustRun(0, nil, append(append([]string{"dlq"}, list...), "-o", "json")...); text != "[]\n" {
			t.Errorf("empty list: got %q, want %q", text, "[]\n")
		}
	}
	if code, _, errs := d.dlq(context.Background(), "replay", "--yes", "--reason", "parse_error"); code != 3 || !strings.Contains(errs, "no open dead letter matches the filters") {
		t.Errorf("replay: got exit %d, output %q; want 3, a text that contains %q", code, errs, "no open dead letter matches the filters")
	}
	for _, c := range [][]string{
		{"UPSTREAM_5XX", "list", "--reason", "x"},
		{"24h or 7d", "list", "--since", "soon"},
		{"24h or 7d", "replay", "--until", "-3h"},
		{"3:120", "show", "3-120"},
		{"whole number", "purge", "--attempts", "-1"},
		{"0 for no limit", "list", "--limit", "-1"},
		{"between 1 and 1000", "show", "--limit", "0"},
		{"high or low", "replay", "--lane", "middle"},
		{"50/s or 30/m", "replay", "--rate", "50"},
		{"excludes all flags but --addr", "replay", "--resume", "none", "--dry-run"},
		{"excludes all flags but --addr", "replay", "--max", "5", "--resume", "none", "--addr", d.api},
		{"needs the ID of a job", "replay", "--resume", ""},
		{"50/s or 30/m", "replay", "--rate", "9/h"},
		{"table, json or jsonl", "list", "-o", "xml"},
		{"accepts 1 arg", "stop"},
	} {
		d.mustRun(2, c[:1], append([]string{"dlq"}, c[1:]...)...)
	}
	d.mustRun(3, []string{`no source "github"`}, "dlq", "list", "--source", "github")
	d.mustRun(3, []string{"has no record at this offset"}, "dlq", "show", "3:99999")
	d.mustRun(3, []string{"no dead letter matches the filters"}, "dlq", "show", "--key", "nobody")
	d.mustRun(3, []string{"The job does not exist"}, "dlq", "stop", "none")
	d.mustRun(3, []string{"The job does not exist"}, "dlq", "replay", "--resume", "none")
	d.mustRun(3, []string{"The job does not exist"}, "dlq", "replay", "--resume", "none", "--addr", d.api)

	d.waitForDeadLetters("a", 5)
	table := strings.Join(strings.Fields(d.mustRun(0, nil, "dlq", "list", "--limit", "0")), " ")
	for _, want := range []string{"ID TIME REASON STATUS FACET/KEY ATTEMPTS REPLAYS HANDLED ERROR", "UPSTREAM_4XX 400 character/bad-a4 2 0 - document"} {
		if !strings.Contains(table, want) {
			t.Errorf("got %[2]s, want %[1]q in it", want, table)
		}
	}
	if code, out, errs := d.dlq(context.Background(), "list", "--limit", "2"); code != 0 || strings.Count(out, "\n") != 3 || !strings.Contains(errs, "there are more than 2") {
		t.Errorf("list: got exit %d, stdout %q, stderr %q; want 0, 3 lines, a text that contains %q", code, out, errs, "there are more than 2")
	}
	if table := strings.Join(strings.Fields(d.mustRun(0, nil, "dlq", "list", "--group")), " "); !strings.Contains(table, "ERROR 5 UPSTREAM_4XX 400 character ") {
		t.Errorf("groups: got %s, want a text that contains %q", table, "ERROR 5 UPSTREAM_4XX 400 character ")
	}
	var all []dlq.Entry
	if err := json.Unmarshal([]byte(d.mustRun(0, nil, "dlq", "list", "--key", "bad-a1", "-o", "json")), &all); err != nil || len(all) != 1 {
		t.Fatalf("dead letters of bad-a1: got %+v, %v, want 1", all, err)
	}
	d.mustRun(0, []string{"character/bad-a1"}, "dlq", "list", "--key", "character/bad-a1")
	d.mustRun(0, []string{"1 of 1 dead letters\n"}, "dlq", "replay", "--dry-run", "--key", "character/bad-a1")
	d.mustRun(0, []string{"UPSTREAM_4XX", "0 of at most 3", `"key": "bad-a1"`, "OPENAPI00004", "response, application/json"}, "dlq", "show", all[0].ID)
	d.mustRun(0, []string{`"reason":"UPSTREAM_4XX"`}, "dlq", "show", "--key", "bad-a1", "-o", "jsonl")

	d.mustRun(0, []string{"nexon.update-priority-low\n", "5 of 5 dead letters\n"}, "dlq", "replay", "--dry-run")
	if code, out, errs := d.dlq(context.Background(), "replay"); code != 2 || !strings.Contains(out, "5 of 5 dead letters") || !strings.Contains(errs, "--yes") {
		t.Errorf("replay without a terminal: got exit %d, stdout %q, stderr %q; want 2, texts that contain %q, %q",
			code, out, errs, "5 of 5 dead letters", "--yes")
	}
	if code, out, errs := d.dlq(context.Background(), "replay", "--yes", "--lane", "high", "--rate", "0", "--max", "3"); code != 0 || !strings.Contains(out, "3 of 3 dead letters replayed (job ") || strings.Contains(out, "%") || !strings.Contains(errs, " %, 0 of 3 dead letters") {
		t.Errorf("replay: got exit %d, stdout %q, stderr %q; want 0, texts that contain %q, %q, no progress in stdout",
			code, out, errs, "3 of 3 dead letters replayed (job ", " %, 0 of 3 dead letters")
	}
	d.mustRun(0, []string{"REPLAY  nexon   DONE   3"}, "dlq", "jobs")
	if n := strings.Count(d.mustRun(0, nil, "dlq", "list", "--handled", "replayed", "-o", "jsonl"), "\n"); n != 3 {
		t.Errorf("replayed dead letters: got %d, want 3", n)
	}
	if code, out, _ := d.dlq(context.Background(), "purge", "--yes", "--note", "they are nobody's"); code != 0 || !strings.Contains(out, "2 of 2 dead letters purged") {
		t.Errorf("purge: got exit %d, output %q; want 0, a text that contains %q", code, out, "2 of 2 dead letters purged")
	}
	if code, out, errs := d.dlq(context.Background(), "purge"); code != 2 || !strings.Contains(out, "0 of 0 dead letters") || !strings.Contains(errs, "--yes") {
		t.Errorf("purge without a terminal: got exit %d, stdout %q, stderr %q; want 2, texts that contain %q, %q",
			code, out, errs, "0 of 0 dead letters", "--yes")
	}
	if code, out, errs := d.dlq(context.Background(), "purge", "--yes"); code != 0 || !strings.Contains(out, "0 of 0 dead letters purged (job ") {
		t.Errorf("purge without open dead letters: got exit %d, stdout %q, stderr %q; want 0, a text that contains %q",
			code, out, errs, "0 of 0 dead letters purged (job ")
	}
	d.mustRun(0, []string{"replay-started", "replay-ended", "purge-ended", "they are nobody's"}, "settings", "audit")
}

// dlq runs `freshet dlq` with these arguments until the command or ctx ends.
func (d *dev) dlq(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	d.Helper()
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"dlq"}, args...), []string{"FRESHET_ADDR=" + d.api}, &out, &errs)
	return code, out.String(), errs.String()
}

// If a command that follows a job is interrupted, the job continues to run. The command `dlq stop`
// stops the job, and the flag --resume continues it.
func TestDLQ_InterruptLeavesJobRunning(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--no-demo", "--simulate", "--config", smallDocument(t))
	d.waitForDeadLetters("a", 4)
	ctx, interrupt := context.WithCancel(context.Background())
	var following sync.WaitGroup
	defer following.Wait()
	defer interrupt()
	following.Go(func() {
		if code, out, errs := d.dlq(ctx, "replay", "--yes", "--rate", "1/m"); code != 4 || !strings.Contains(errs, "continues without this command") || strings.Contains(out, "dead letters replayed") {
			t.Errorf("interrupted replay: got exit %d, stdout %q, stderr %q; want 4, a text that contains %q, no end in stdout",
				code, out, errs, "continues without this command")
		}
	})
	job := func(state deadletters.JobState, done int64) (j deadletters.Job) {
		d.Helper()
		for since := time.Now(); j.State != state || j.Done != done; <-time.After(50 * time.Millisecond) {
			var all []deadletters.Job
			if err := json.Unmarshal([]byte(d.mustRun(0, nil, "dlq", "jobs", "-o", "json")), &all); err != nil || len(all) > 1 {
				t.Fatalf("jobs: got %+v, %v, want at most 1", all, err)
			}
			if len(all) == 1 {
				j = all[0]
			}
			if time.Since(since) > eventTimeout {
				t.Fatalf("job: got %+v, want %s with %d done", j, state, done)
			}
		}
		return j
	}
	id := job(deadletters.JobRunning, 1).ID
	interrupt()
	following.Wait()
	job(deadletters.JobRunning, 1)
	d.mustRun(0, []string{"stops within 30 s", "1 of 4"}, "dlq", "stop", id)
	job(deadletters.JobStopped, 1)

	again, leave := context.WithCancel(context.Background())
	defer leave()
	following.Go(func() { d.dlq(again, "replay", "--resume", id) })
	job(deadletters.JobRunning, 1)
	d.mustRun(0, nil, "dlq", "stop", id)
	following.Wait() // the command that follows the job must also end, because the job was stopped
}

// If dead letters stay open at the end of a job, the command that follows the job exits with code
// 4. Its error names the reason and the next step.
func TestDLQ_FollowReportsOpenDeadLetters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		j       deadletters.Job
		partial bool
		says    string
	}{
		"all":     {deadletters.Job{State: deadletters.JobDone, Total: 2, Done: 2}, false, ""},
		"limit":   {deadletters.Job{State: deadletters.JobDone, Total: 2, Done: 1, Refused: map[string]int64{dlq.RefusedLimit: 1}}, true, "1 stay open: already replayed 3 times; fix"},
		"several": {deadletters.Job{State: deadletters.JobDone, Refused: map[string]int64{dlq.RefusedGone: 4, dlq.RefusedInvalid: 1}}, true, "4 stay open: Kafka has deleted the record; purge; 1 stay open: the facet"},
		"stopped": {deadletters.Job{State: deadletters.JobStopped, ID: "j"}, true, "freshet dlq replay --resume j"},
	} {
		var out bytes.Buffer
		p := &program{app.NewProcess(nil, &out, io.Discard)}
		test.j.Kind = deadletters.ReplayJob
		err := reportJobEnd(p, test.j)
		if partial := errors.As(err, new(partialError)); partial != test.partial || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want an error that contains %q, partial: %v", name, err, test.says, test.partial)
		}
		if want := fmt.Sprintf("%d of %d dead letters replayed", test.j.Done, test.j.Total); !strings.Contains(out.String(), want) {
			t.Errorf("%s: got %q, want a text that contains %q", name, out.String(), want)
		}
	}
}
