package e2e

import (
	"context"
	"flag"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

var (
	long         = flag.Bool("long", false, "run the long forms too: hours of freezes, kills and a million dead letters")
	quietMachine = flag.Bool("quiet-machine", false, "judge also the figures that need a machine without other work")
	outageLength = flag.Duration("outage", 30*time.Second, "length of the total outage, at least 10s")
	round        = flag.Duration("round", 5*time.Second, "length of a measurement of reads, whole seconds")
	bareDatabase = flag.String("bare", "", "serve payloads of this database instead of testing (the reads bar starts itself with it)")
)

// parallelTests is how many tests run at once unless -parallel is set: they mostly wait.
const parallelTests = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	if *bareDatabase != "" {
		serveBare(*bareDatabase)
		return
	}
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		if err := flag.Set("test.parallel", parallelTests); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

var buildDir string

// binary builds freshet once.
var binary = sync.OnceValues(func() (path string, err error) {
	if buildDir, err = os.MkdirTemp("", "freshet-e2e-build-"); err != nil {
		return "", err
	}
	return harness.Build(context.Background(), buildDir)
})

// longOnly skips a test, by name and with its command, unless the long forms run.
func longOnly(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skipf("%s takes minutes; run it with: cd e2e && go test -count=1 -v -timeout 2h -run '^%s$' . -long", t.Name(), t.Name())
	}
}

// size is that of the short form or of the long form.
func size[N any](short, longForm N) N {
	if *long {
		return longForm
	}
	return short
}

// withBusy adds to a limit the delay of a machine that has other work. A probe whose permit
// is not spent in time is followed by the next one after twice the pause.
func withBusy(limit time.Duration) time.Duration {
	if *quietMachine {
		return limit + 5*time.Second
	}
	return limit + time.Minute
}
