package limiter

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

func TestReport_ShowsSoonThatCallsEnded(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	deps := withoutLogs(Deps{Redis: rdb, Settings: &settingsDouble{}})
	deps.Process = "a"
	l, err := New("nexon", second(500, 450, 100, 0), deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer stop()
	for range 20 {
		if p := mustAcquire(t, l, schemas.High); !p.Spend() {
			t.Error("Spend: got false, want true")
		}
	}
	ended := time.Now()
	var before ProcessView
	again := false // true after two reports in a row with the same number of calls, which shows that the calls have ended
	look := time.NewTicker(20 * ms)
	defer look.Stop()
	for limit := time.After(30 * time.Second); !again; {
		select {
		case <-look.C:
		case <-limit:
			t.Fatal("the end of calls is not reported")
		}
		var p ProcessView
		text := rdb.HGet(ctx, reportsKey("nexon"), "a").Val()
		if text != "" && json.Unmarshal([]byte(text), &p) != nil {
			t.Fatal(text)
		}
		again = p.High.Granted >= 20 && p.High.Granted == before.High.Granted && p.At.After(before.At)
		if p.At.After(before.At) {
			before = p
		}
	}
	if took := time.Since(ended); took > idleReportInterval*2/3 {
		t.Errorf("got the report after %v", took)
	}
	l.mu.Lock()
	l.reports.wanted, l.alloc.forceCall = false, false
	l.mu.Unlock()
	l.reports.at = time.Now()
	l.reports.schedule(time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reports.wanted {
		t.Error("idle process: reported more often than every idleReportInterval")
	}
}
