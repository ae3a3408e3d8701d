// Package servicetest gives tests the addresses of the real services, which it reads from
// environment variables. A test is skipped if the address of a service that it needs is not set.
// With FRESHET_TEST_REQUIRE set, as in CI, the test fails instead. scripts/services starts all
// services and prints their environment variables. For a Redis that a test may kill, use
// PrivateRedis.
package servicetest

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	gopherlua "github.com/yuin/gopher-lua"
)

// address returns the address of a service from an environment variable. If the variable is not
// set, address calls skipOrFail.
func address(t testing.TB, variable, service string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		skipOrFail(t, variable+" is not set", "a real "+service, `start it with: eval "$(scripts/services up)"`)
	}
	return value
}

// skipOrFail skips the test, or fails it if FRESHET_TEST_REQUIRE is set.
func skipOrFail(t testing.TB, what, needs, hint string) {
	t.Helper()
	if os.Getenv("FRESHET_TEST_REQUIRE") != "" {
		t.Fatalf("%s, and FRESHET_TEST_REQUIRE is set: %s needs %s; %s", what, t.Name(), needs, hint)
	}
	t.Skipf("%s: %s needs %s; %s", what, t.Name(), needs, hint)
}

// Program returns the path of a program. If the program is not installed, it skips or fails the
// test. pack is the Debian package that contains the program.
func Program(t testing.TB, name, pack string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		skipOrFail(t, name+" is not installed", "it", "install it with: apt-get install -y --no-install-recommends "+pack)
	}
	return path
}

// Name returns a unique name for a source, so that tests on a shared service do not affect each
// other.
func Name(prefix string) string {
	return prefix + "-" + strings.ToLower(rand.Text()[:10])
}

// Kafka returns the addresses of a broker.
func Kafka(t testing.TB) []string {
	t.Helper()
	return strings.Split(address(t, "FRESHET_TEST_KAFKA", "Kafka"), ",")
}

// RedisAddress returns the address of a real Redis server that is not part of a cluster.
func RedisAddress(t testing.TB) string {
	t.Helper()
	return address(t, "FRESHET_TEST_REDIS", "Redis")
}

// RedisClusterAddresses returns the addresses of a Redis Cluster's nodes.
func RedisClusterAddresses(t testing.TB) []string {
	t.Helper()
	return strings.Split(address(t, "FRESHET_TEST_REDIS_CLUSTER", "Redis Cluster"), ",")
}

// The embedded Redis creates an interpreter of Lua for each call of a script. By default an interpreter
// reserves memory for 5,120 values and 256 nested calls, which takes a third of the processor time of
// many tests. The scripts of package lua need less.
func init() { gopherlua.RegistrySize, gopherlua.CallStackSize = 1024, 64 }

// NewMiniRedis returns an embedded Redis that is not started. Its interpreters of Lua reserve little memory.
func NewMiniRedis() *miniredis.Miniredis { return miniredis.NewMiniRedis() }

// MiniRedis starts an embedded Redis and returns a client and the server. The test may set the
// server's clock.
func MiniRedis(t testing.TB) (redis.UniversalClient, *miniredis.Miniredis) {
	t.Helper()
	m := NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return connect(t, []string{m.Addr()}), m
}

// EachRedis runs the test on an embedded Redis, a real Redis and a real Redis Cluster. If
// FRESHET_TEST_REQUIRE is set, it does not run the test on the embedded Redis.
func EachRedis(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	t.Helper()
	if os.Getenv("FRESHET_TEST_REQUIRE") == "" { // with FRESHET_TEST_REQUIRE only real services are used
		t.Run("miniredis", func(t *testing.T) {
			rdb, _ := MiniRedis(t)
			test(t, rdb)
		})
	}
	t.Run("redis", func(t *testing.T) { test(t, connect(t, []string{RedisAddress(t)})) })
	t.Run("cluster", func(t *testing.T) { test(t, connect(t, RedisClusterAddresses(t))) })
}

func connect(t testing.TB, addresses []string) redis.UniversalClient {
	t.Helper()
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:         addresses,
		IsClusterMode: len(addresses) > 1,
		// The client repeats no failed command, so that the test sees each failure.
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(fmt.Errorf("ping Redis at %v: %w", addresses, err))
	}
	return rdb
}

// WaitFor waits until a condition holds, and fails the test if it does not hold within the limit. The
// pause after an evaluation of the condition is at least nine times as long as the evaluation. So an
// expensive condition, such as one that reads all metrics, leaves the processor to the tested code.
func WaitFor(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	for {
		evaluated := time.Now()
		if holds() {
			break
		}
		if time.Since(began) > limit {
			t.Fatalf("%s: got nothing within %v, want it", what, limit)
		}
		<-time.After(max(20*time.Millisecond, 9*time.Since(evaluated)))
	}
	t.Logf("%s took %v", what, time.Since(began).Round(time.Millisecond))
}
