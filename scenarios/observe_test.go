package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/freshet/freshet/servicetest"
)

func TestObserveSeesEveryPanelRuleAndAlert(t *testing.T) {
	servicetest.Kafka(t)
	servicetest.Postgres(t)
	for _, program := range []string{"prometheus", "redis-server"} { // so their packages are called too
		if _, err := exec.LookPath(program); err != nil {
			end := t.Skipf
			if os.Getenv("FRESHET_TEST_REQUIRE") != "" {
				end = t.Fatalf
			}
			end("there is no %s, and %s needs a real one: apt-get install -y --no-install-recommends %s", program, t.Name(), program)
		}
	}
	t.Chdir("..")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--seconds", "6", "--brief", "observe"}, &out, &out); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, out.Bytes())
	}
}
