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
	quietMachine = flag.Bool("quiet-machine", false, "also judge the figures that need a machine without other load")
	outageLength = flag.Duration("outage", 30*time.Second, "length of the total outage, at least 10s")
	round        = flag.Duration("round", 5*time.Second, "length of a measurement of reads, whole seconds")
	users        = flag.Int("users", 1000, "number of users in the test of runs over the lists of all users")
	killEvery    = flag.Duration("kill-every", 30*time.Second, "interval of the kills in that test")
	bareDatabase = flag.String("bare", "", "serve payloads of this database instead of testing (used by the comparison of reads)")
)

// parallelTests is the number of tests that run at the same time if -parallel is not set. The tests
// mostly wait, so this number may exceed the number of CPUs.
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

// binary returns the path of freshet. The first call builds it.
var binary = sync.OnceValues(func() (path string, err error) {
	if buildDir, err = os.MkdirTemp("", "freshet-e2e-build-"); err != nil {
		return "", err
	}
	return harness.Build(context.Background(), buildDir)
})

// longOnly skips the test unless -long is set. The skip message contains the command that runs the
// test.
func longOnly(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skipf("%s takes minutes; run it with: cd e2e && go test -count=1 -v -timeout 2h -run '^%s$' . -long", t.Name(), t.Name())
	}
}

// size returns longForm if -long is set, and short otherwise.
func size[N any](short, longForm N) N {
	if *long {
		return longForm
	}
	return short
}

// parallelUnlessQuiet runs the test at the same time as other tests. With the flag -quiet-machine the
// test runs alone, because it then checks figures that other load would change.
func parallelUnlessQuiet(t *testing.T) {
	t.Helper()
	if !*quietMachine {
		t.Parallel()
	}
}

// withBusy returns the limit plus an allowance: 5 s with -quiet-machine, and otherwise a minute for
// the delay that other load on the machine can cause. This delay is long: if the permit of a probe
// expires unused, the next probe is sent only after a pause that is twice as long.
func withBusy(limit time.Duration) time.Duration {
	if *quietMachine {
		return limit + 5*time.Second
	}
	return limit + time.Minute
}
