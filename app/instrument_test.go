package app

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
)

func TestRedisMetrics_LabelCommandsAndScripts(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	reg := prometheus.NewPedanticRegistry()
	registerRedisMetrics(rdb, reg)
	ctx := t.Context()
	rdb.Set(ctx, "a secret key", 1, 0)
	rdb.EvalSha(ctx, "another script", nil)
	eval.Once(ctx, rdb, lua.CoalesceRollback, eval.Call{Key: "upd:{a}", Args: []any{1}})
	eval.Once(ctx, rdb, lua.CoalesceRollback, eval.Call{Key: "upd:{a}", Args: []any{1}})
	eval.Each(ctx, rdb, lua.CoalesceRollback, []eval.Call{{Key: "upd:{a}", Args: []any{1}}, {Key: "upd:{b}", Args: []any{1}}})
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if family.GetName() == "redis_command_duration_seconds" {
				counts[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
			} else if !strings.HasPrefix(family.GetName(), "redis_pool_") {
				t.Errorf("metric: got %s, want only redis_command_duration_seconds and redis_pool_...", family.GetName())
			}
		}
	}
	// The commands of a connection's handshake must not be counted.
	want := map[string]uint64{"set": 1, "coalesce_rollback": 2, "eval": 1, "evalsha": 1, "pipeline": 1}
	if !maps.Equal(counts, want) {
		t.Errorf("commands: got %v, want %v", counts, want)
	}
	if !slices.ContainsFunc(lua.All, func(s lua.Script) bool { return s == lua.LimiterAcquire }) {
		t.Error("scripts: got none that equals LimiterAcquire, want one")
	}
}
