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
	redis := doneHurt{hurt{harm: harm{name: "Redis cut", part: "redis"}, victim: "query-1"}, at(10), at(12)}
	for name, c := range map[string]struct {
		fell   fall
		log    string
		missed bool
	}{
		"at its start, without Redis":       {fall{"query-1", at(5), at(11), at(60)}, "freshet: no Redis\n", false},
		"so, and silent":                    {fall{"query-1", at(5), at(11), at(60)}, "", true},
		"so, and it was a panic":            {fall{"query-1", at(5), at(11), at(60)}, "panic: a bug\nfreshet: no Redis\n", true},
		"a panic that was survived":         {fall{"query-1", at(5), at(11), at(60)}, "msg=x err=\"panic: a bug\"\nfreshet: no Redis\n", true},
		"at its start, and nothing is away": {fall{"query-1", at(40), at(52), at(60)}, "freshet: no Redis\n", true},
		"at its start, and others had none": {fall{"query-2", at(5), at(11), at(60)}, "freshet: no Redis\n", true},
		"long after it":                     {fall{"query-1", at(-20), at(11), at(60)}, "freshet: no Redis\n", true},
	} {
		s := &site{Site: &harness.Site{Dir: t.TempDir()}}
		if err := os.WriteFile(filepath.Join(s.Dir, c.fell.who+".log"), []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		of := &torturer{s: s, done: []doneHurt{redis}, fell: []fall{c.fell}, cast: []*actor{{target: target{name: c.fell.who}}}}
		var judged table
		if err := of.unasked(&judged); err != nil || judged.missed != c.missed {
			t.Errorf("%s: missed is %t, %v", name, judged.missed, err)
		}
		of.fell, of.cast[0].missed = nil, []fall{c.fell}
		var starts table
		if err := of.unasked(&starts); err != nil || starts.missed != c.missed {
			t.Errorf("a start, %s: missed is %t, %v", name, starts.missed, err)
		}
	}
}

func TestTortureJudge_SeesReadsThatFailWithoutCause(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	killed := doneHurt{hurt{harm: harm{name: "killed", part: "process"}, victim: "query-1"}, at(10), at(12)}
	redis := doneHurt{hurt{harm: harm{name: "Redis cut", part: "redis"}, victim: everyone}, at(100), at(101)}
	of := &torturer{done: []doneHurt{killed, redis}, fell: []fall{{"query-2", at(0), at(30), at(33)}}}
	for name, c := range map[string]struct {
		refusal
		missed bool
	}{
		"no answer of one that is killed":  {refusal{promise{"k", "query-1", at(9)}, at(11), 0, "reset"}, false},
		"no answer of another":             {refusal{promise{"k", "query-2", at(9)}, at(11), 0, "reset"}, true},
		"no answer of one that fell":       {refusal{promise{"k", "query-2", at(31)}, at(32), 0, "reset"}, false},
		"no answer of one long back":       {refusal{promise{"k", "query-2", at(34)}, at(35), 0, "reset"}, true},
		"a hold":                           {refusal{promise{"k", "query-1", at(60)}, at(60), http.StatusServiceUnavailable, "HELD_FAILED"}, false},
		"no Redis":                         {refusal{promise{"k", "query-1", at(120)}, at(120), http.StatusServiceUnavailable, "UNAVAILABLE"}, false},
		"none, and it is back long since":  {refusal{promise{"k", "query-1", at(160)}, at(160), http.StatusServiceUnavailable, "UNAVAILABLE"}, true},
		"a bug, while something else hurt": {refusal{promise{"k", "query-1", at(100)}, at(100), http.StatusInternalServerError, ""}, true},
	} {
		l := &load{refused: []refusal{c.refusal}}
		l.reads.Store(50)
		var judged table
		of.refusals(&judged, l)
		if judged.missed != c.missed {
			t.Errorf("%s: missed is %t", name, judged.missed)
		}
	}
}
