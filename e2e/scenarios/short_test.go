package main

import (
	"bytes"
	"testing"

	"github.com/freshet/freshet/servicetest"
)

// runScenarios runs the program on the real services. It skips the test if a service or a
// program is missing.
func runScenarios(t *testing.T, programs []string, args ...string) {
	t.Helper()
	servicetest.Kafka(t)
	servicetest.Postgres(t)
	for _, program := range append(programs, "redis-server") {
		servicetest.Program(t, program, program)
	}
	var out bytes.Buffer
	if code := run(t.Context(), args, &out, &out); code != 0 {
		t.Errorf("exit code: got %d, want 0\n%s", code, out.Bytes())
	}
}

// These scenarios check claims that no other test covers: one call for a thousand readers, no
// lost request when a worker is killed, the pipeline on a Redis Cluster, and no harm to honest
// clients by hostile clients. The latency of honest clients is judged by `make scenarios`, since it
// depends on the load of the machine.
func TestScenarios_HoldTheirLimits(t *testing.T) {
	servicetest.RedisClusterAddresses(t)
	runScenarios(t, nil, "--seconds", "6", "--brief", "herd", "killed", "cluster", "hostile")
}

func TestObserve_SeesEveryPanelRuleAndAlert(t *testing.T) {
	runScenarios(t, []string{"prometheus"}, "--seconds", "6", "--brief", "observe")
}

// The ten faults of this seed are short and cover all components: a worker is killed while the
// tables are locked, Redis fails over and loses its data, the broker is frozen.
func TestTorture_HoldsForTenFaults(t *testing.T) {
	runScenarios(t, nil, "--seed", "155752", "--faults", "10", "torture")
}
