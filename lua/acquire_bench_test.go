//go:build unix

package lua_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/servicetest"
)

// BenchmarkAcquire measures Redis' own time per run of coalesce_acquire, with and without the
// script's INFO command. The figure "with/without" shows the cost of INFO. Both variants are
// measured alternately, and the median counts.
func BenchmarkAcquire(b *testing.B) {
	const asks = `redis.pcall('INFO', 'replication')`
	without := lua.CoalesceAcquire
	without.Source = strings.Replace(without.Source, asks, "'master_replid:0123456789abcdef'", 1)
	if without.Source == lua.CoalesceAcquire.Source {
		b.Fatalf("coalesce_acquire does not call %s", asks)
	}
	without.SHA1 = redis.NewScript(without.Source).Hash()

	const n = 1000
	rdb := servicetest.PrivateRedis(b).Client
	turn := func(s lua.Script, key string) float64 {
		b.Helper()
		calls := make([]eval.Call, n)
		for i := range calls {
			calls[i] = eval.Call{Key: fmt.Sprintf("upd:{%s/%d}", key, i), Args: []any{"HIGH", 1, 0, 0, 0, minute, hour}}
		}
		if err := rdb.Do(b.Context(), "CONFIG", "RESETSTAT").Err(); err != nil {
			b.Fatal(err)
		}
		for _, r := range eval.Each(b.Context(), rdb, s, calls) {
			if r.Err() != nil {
				b.Fatal(r.Err())
			}
		}
		return perCall(b, rdb)
	}
	for _, s := range []lua.Script{lua.CoalesceAcquire, without} { // run both scripts once without measuring, so that Redis has loaded them
		turn(s, "loaded")
	}
	took := map[string][]float64{}
	for i := 0; b.Loop(); i++ {
		for _, outcome := range []string{"published", "covered"} { // each key is requested twice; the second request is covered
			for name, s := range map[string]lua.Script{"with": lua.CoalesceAcquire, "without": without} {
				what := outcome + ", " + name
				took[what] = append(took[what], turn(s, fmt.Sprint(name, i)))
			}
		}
	}
	for _, outcome := range []string{"published", "covered"} {
		with, without := median(took[outcome+", with"]), median(took[outcome+", without"])
		b.ReportMetric(with, "us/"+outcome)
		b.ReportMetric(with/without, "with/without-"+outcome)
	}
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

var evalshas = regexp.MustCompile(`cmdstat_evalsha:.*usec_per_call=([0-9.]+)`)

func perCall(b *testing.B, rdb *redis.Client) float64 {
	b.Helper()
	info, err := rdb.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	m := evalshas.FindStringSubmatch(info)
	if m == nil {
		b.Fatalf("no evalsha among %s", info)
	}
	us, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return us
}
