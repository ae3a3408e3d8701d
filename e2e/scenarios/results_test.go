package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

func resultsOf(name string, day, figure string, held bool) runResults {
	t := &table{}
	t.report("reported", "%s", "only")
	t.judge("it | took\nthis", figure, "<3", held)
	t.markTarget(highP95)
	return runResults{stamp{day, "2 cores", "v1", 30}, []result{{name: name, table: t, latency: "1s"}, {name: "a part of observe", table: t}}}
}

func TestResults_ReplaceOnlyTheirOwnRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.md")
	for _, o := range []runResults{
		resultsOf(phaseRedis, "2020-01-01", "1", true), resultsOf(phaseKafka, "2020-01-02", "2", true), resultsOf(phaseRedis, "2020-01-03", "5", false),
	} {
		if err := writeResults(file, o); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"| " + highP95 + " | <3 s | it / took this: 5 | dead-redis | MISSED | 2020-01-03, 2 cores, v1, --seconds 30 |\n",
		"| 9 | slow-kafka | as flood, and a produce to Kafka takes one second; a call takes 1s | it / took this: 2 | <3 | held | 2020-01-02, 2 cores, v1, --seconds 30 |\n",
		"| it / took this: 5 | <3 | MISSED | 2020-01-03, 2 cores, v1, --seconds 30 |\n",
	} {
		if !strings.Contains(string(text), row) {
			t.Errorf("results: got\n%s\nwant the row %q in them", text, row)
		}
	}
	if strings.Contains(string(text), "2020-01-01") || strings.Contains(string(text), "a part of") || strings.Index(string(text), "| 9 |") > strings.Index(string(text), "| 10 |") {
		t.Errorf("results: got\n%s\nwant no row of an earlier run or of a part of observe, in order", text)
	}
	if again := merge(string(text), runResults{}); again != string(text) {
		t.Errorf("results merged with an empty run: got\n%s\nwant no change", again)
	}
}

// The results file must have a row even for a target or scenario that was never run.
func TestResults_NameScenariosThatWereNotRun(t *testing.T) {
	text := merge("", resultsOf("normal", "2020-01-01", "1", true))
	for _, target := range targets {
		if !strings.Contains(text, "| "+target[0]+" |") {
			t.Errorf("results: got no row of the target %q, want one", target[0])
		}
	}
	for _, sc := range scenarios {
		if sc.adr > 0 && !strings.Contains(text, "| "+sc.name+" |") {
			t.Errorf("results: got no row of the scenario %s, want one", sc.title())
		}
	}
	if strings.Contains(text, "| "+highP95+" | <3 s | "+notRunYet) || !strings.Contains(text, "| "+readP95+" | <100 ms | "+notRunYet) {
		t.Errorf("results: got\n%s\nwant a figure of %q and none of %q", text, highP95, readP95)
	}
	text = merge(text, resultsOf("peak", "2020-01-02", "2", true))
	if n := strings.Count(text, "| "+highP95+" |"); n != 2 {
		t.Errorf("rows of a target with two scenarios: got %d, want 2\n%s", n, text)
	}
}

func TestResults_ReplaceARunByAFailedOne(t *testing.T) {
	reads, _ := find("reads")
	failed := reads.failedResults([]result{{name: phaseFlood}})
	if len(failed) != 2 || failed[0].name != phaseKafka || failed[1].name != phaseRedis {
		t.Errorf("failed parts of reads: got %+v, want %s and %s", failed, phaseKafka, phaseRedis)
	}
	before := merge("", resultsOf(phaseKafka, "2020-01-01", "1", true))
	text := merge(before, runResults{stamp{"2020-01-02", "2 cores", "v1", 30}, failed})
	if strings.Contains(text, "2020-01-01") || strings.Count(text, runFailed) != 4 {
		t.Errorf("results: got\n%s\nwant two failed rows and no earlier one", text)
	}
	if again := merge(text, runResults{}); again != text {
		t.Errorf("results merged with an empty run: got\n%s\nwant no change", again)
	}
}

func TestChoose_ReturnsEachScenarioOnceWithItsParts(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"flood reads", "reads"}, {"flood dead-redis flood", "flood dead-redis"}, {"nobody", ""}, {"nobody all", ""}, {"", ""},
	} {
		chosen, err := choose(strings.Fields(c.names))
		var names []string
		for _, sc := range chosen {
			names = append(names, sc.name)
		}
		if got := strings.Join(names, " "); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("choose %q: got %q, %v, want %q", c.names, got, err, c.want)
		}
	}
	all, err := choose([]string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, sc := range all {
		if sc.notInAll {
			t.Errorf("choose all: got %s, want only scenarios without notInAll", sc.name)
		}
		seen[sc.adr] = true
		for _, part := range sc.parts {
			p, _ := find(part)
			seen[p.adr] = true
		}
	}
	for _, sc := range scenarios {
		if sc.adr > 0 && !seen[sc.adr] {
			t.Errorf("choose all: got no %s, want every scenario of the plan", sc.title())
		}
		if sc.summary == "" || sc.run == nil {
			t.Errorf("%s: got no summary or no function, want both", sc.name)
		}
	}
}

func TestRun_ReturnsTwoForWrongUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"nobody"}, {"--seconds", "1", "all"}, {"--nothing"}} {
		var out bytes.Buffer
		if code := run(t.Context(), args, &out, &out); code != 2 {
			t.Errorf("exit code of %q: got %d, want 2", args, code)
		}
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--list"}, &out, &out); code != 0 || !strings.Contains(out.String(), "dead-redis") {
		t.Errorf("--list: got exit code %d and %s, want 0 and dead-redis in it", code, out.String())
	}
}

func TestTable_OneMissedLimitMissesTable(t *testing.T) {
	held := &table{}
	held.judgeEqual("calls", 1, 1)
	held.judgeBelow("took", 999*time.Millisecond, time.Second)
	if held.missed {
		t.Error("table with held limits: got missed true, want false")
	}
	for _, judge := range []func(*table){
		func(t *table) { t.judgeEqual("calls", 2, 1) },
		func(t *table) { t.judgeBelow("took", time.Second, time.Second) },
		func(t *table) { t.judgeBelow("took", p95(nil), time.Second) },
	} {
		missed := &table{}
		judge(missed)
		if !missed.missed {
			t.Errorf("%+v: got missed false, want true", missed.lines)
		}
	}
	if got := p95([]time.Duration{5, 1, 2, 3, 4}); got != 5 {
		t.Errorf("p95 of five values: got %d, want 5", got)
	}
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	if got := p95(hundred); got != 95 {
		t.Errorf("p95 of 1 to 100: got %d, want 95", got)
	}
}

func TestDisorder_CountsRepeatedAndFallingNumbers(t *testing.T) {
	of := func(key string, version int64) (r harness.Request) {
		r.Key, r.Version = key, version
		return r
	}
	twice, back := countDisorder([]harness.Request{of("a", 5), of("b", 5), of("a", 7), of("a", 6), of("b", 6), of("a", 7), of("a", 8)})
	if twice != 1 || back != 1 {
		t.Errorf("versions: got %d repeated, %d falling, want 1 and 1", twice, back)
	}
}

func TestPerEntity_CountsEarlyCallsAsLoops(t *testing.T) {
	began := time.Now()
	at := func(key string, seconds float64) harness.Arrival {
		return harness.Arrival{At: began.Add(time.Duration(seconds * float64(time.Second))), Key: key}
	}
	maxCalls, minCalls, loops := perEntity([]harness.Arrival{at("a", 0), at("b", 1), at("a", 2), at("a", 3), at("b", 3.1)}, 2*time.Second)
	if maxCalls != 3 || minCalls != 2 || loops != 1 {
		t.Errorf("calls: got max %d, min %d, %d loops, want 3, 2 and 1", maxCalls, minCalls, loops)
	}
	all := []harness.Arrival{at("low-1", 0), at("high-1", 1), at("low-2", 1.5), at("low-3", 6), at("low-4", 6.2)}
	from, to := longestGap(all, "low-", began.Add(time.Second), began.Add(9*time.Second))
	if from != all[2].At || to != all[3].At {
		t.Errorf("longest gap: got %v to %v, want 1.5s to 6s", from.Sub(began), to.Sub(began))
	}
	if n := harness.MaxInSecond(all, began.Add(time.Second), began.Add(9*time.Second)); n != 2 {
		t.Errorf("max calls in a second: got %d, want 2", n)
	}
	if n := harness.CountCalls(all, "low-", began, began.Add(6*time.Second)); n != 2 {
		t.Errorf("LOW calls: got %d, want 2", n)
	}
}
