package main

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

func TestTortureJudge_SeesProcessesThatEnded(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	redis := injectedFault{fault{faultKind: faultKind{name: "Redis cut", component: "redis"}, victim: "query-1"}, at(10), at(12)}
	for name, c := range map[string]struct {
		fell   unplannedExit
		log    string
		missed bool
	}{
		"at its start, without Redis":       {unplannedExit{"query-1", at(5), at(11), at(60)}, "freshet: no Redis\n", false},
		"the same, without a logged reason": {unplannedExit{"query-1", at(5), at(11), at(60)}, "", true},
		"the same, with a panic":            {unplannedExit{"query-1", at(5), at(11), at(60)}, "panic: a bug\nfreshet: no Redis\n", true},
		"the same, with a recovered panic":  {unplannedExit{"query-1", at(5), at(11), at(60)}, "msg=x err=\"panic: a bug\"\nfreshet: no Redis\n", true},
		"at its start, without a fault":     {unplannedExit{"query-1", at(40), at(52), at(60)}, "freshet: no Redis\n", true},
		"at its start, fault of another":    {unplannedExit{"query-2", at(5), at(11), at(60)}, "freshet: no Redis\n", true},
		"long after its start":              {unplannedExit{"query-1", at(-20), at(11), at(60)}, "freshet: no Redis\n", true},
	} {
		s := &site{Site: &harness.Site{Dir: t.TempDir()}}
		if err := os.WriteFile(filepath.Join(s.Dir, c.fell.name+".log"), []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		of := &injector{s: s, injected: []injectedFault{redis}, exits: []unplannedExit{c.fell}, instances: []*instance{{target: target{name: c.fell.name}}}}
		var judged table
		if err := of.judgeExits(&judged); err != nil || judged.missed != c.missed {
			t.Errorf("%s: got missed %t, %v, want %t", name, judged.missed, err, c.missed)
		}
		of.exits, of.instances[0].failedStarts = nil, []unplannedExit{c.fell}
		var starts table
		if err := of.judgeExits(&starts); err != nil || starts.missed != c.missed {
			t.Errorf("failed start, %s: got missed %t, %v, want %t", name, starts.missed, err, c.missed)
		}
	}
}

func TestTortureJudge_SeesReadsThatFailWithoutCause(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	killed := injectedFault{fault{faultKind: faultKind{name: "killed", component: "process"}, victim: "query-1"}, at(10), at(12)}
	redis := injectedFault{fault{faultKind: faultKind{name: "Redis cut", component: "redis"}, victim: allProcesses}, at(100), at(101)}
	of := &injector{injected: []injectedFault{killed, redis}, exits: []unplannedExit{{"query-2", at(0), at(30), at(33)}}}
	for name, c := range map[string]struct {
		failedRead
		missed bool
	}{
		"no response, killed":             {failedRead{promise{"k", "query-1", at(9)}, at(11), 0, "reset"}, false},
		"no response, another killed":     {failedRead{promise{"k", "query-2", at(9)}, at(11), 0, "reset"}, true},
		"no response, process ended":      {failedRead{promise{"k", "query-2", at(31)}, at(32), 0, "reset"}, false},
		"no response, long restarted":     {failedRead{promise{"k", "query-2", at(34)}, at(35), 0, "reset"}, true},
		"a hold":                          {failedRead{promise{"k", "query-1", at(60)}, at(60), http.StatusServiceUnavailable, "HELD_FAILED"}, false},
		"no Redis":                        {failedRead{promise{"k", "query-1", at(120)}, at(120), http.StatusServiceUnavailable, "UNAVAILABLE"}, false},
		"no Redis, recovered long before": {failedRead{promise{"k", "query-1", at(160)}, at(160), http.StatusServiceUnavailable, "UNAVAILABLE"}, true},
		"status 500 during a fault":       {failedRead{promise{"k", "query-1", at(100)}, at(100), http.StatusInternalServerError, ""}, true},
	} {
		l := &tortureLoad{failedReads: []failedRead{c.failedRead}}
		l.reads.Store(50)
		var judged table
		of.judgeFailedReads(&judged, l)
		if judged.missed != c.missed {
			t.Errorf("%s: got missed %t, want %t", name, judged.missed, c.missed)
		}
	}
}
