package main

import (
	"bytes"
	"testing"

	"github.com/freshet/freshet/servicetest"
)

func TestObserveSeesEveryPanelRuleAndAlert(t *testing.T) {
	servicetest.Kafka(t)
	servicetest.Postgres(t)
	servicetest.Program(t, "prometheus", "prometheus")
	servicetest.Program(t, "redis-server", "redis-server")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--seconds", "6", "--brief", "observe"}, &out, &out); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, out.Bytes())
	}
}
