//go:build unix

package servicetest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisServer is a real Redis of a test's own, which the test may stop, kill,
// start again and replace. It listens on loopback, and ends with the test.
type RedisServer struct {
	Address string
	// Client is the test's own, for what a person in charge of a Redis does.
	Client *redis.Client

	t      testing.TB
	binary string
	dir    string
	args   []string
	server *exec.Cmd
	output bytes.Buffer  // of the present or the last process; read it once ended
	ended  chan struct{} // closed when the process has
}

// PrivateRedis starts one and waits until it answers. Options are redis-server's
// own, as in "--appendonly", "yes"; without any, nothing is kept on disk. Like the
// other services it needs FRESHET_TEST_REDIS, although it starts a server of its own, so
// that only runs on real services start one.
func PrivateRedis(t testing.TB, options ...string) *RedisServer {
	t.Helper()
	_ = RedisAddress(t)
	binary := Program(t, "redis-server", "redis-server")
	port := freePort(t)
	s := &RedisServer{Address: net.JoinHostPort("127.0.0.1", port), t: t, binary: binary, dir: t.TempDir()}
	s.args = append([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", s.dir, "--save", "",
		"--maxmemory-policy", "noeviction", "--repl-diskless-sync-delay", "0",
	}, options...)
	s.Client = redis.NewClient(&redis.Options{Addr: s.Address, MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() {
		_ = s.Client.Close()
		s.end()
	})
	s.Start()
	return s
}

// freePort returns one below those that the kernel gives to outgoing
// connections: while a Redis is down nobody else must get its port, not even a
// client that dials it.
func freePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := fmt.Sprint(20_000 + rand.IntN(10_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("there is no free port between 20000 and 30000")
	return ""
}

// Replica starts a replica and waits until it has what the server has.
func (s *RedisServer) Replica(options ...string) *RedisServer {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(s.Address)
	r := PrivateRedis(s.t, append([]string{"--replicaof", host, port}, options...)...)
	r.waitUntil("follows "+s.Address, func(ctx context.Context) bool {
		info, err := r.Client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	return r
}

// Start starts it on the same port and folder, after Kill, and waits until it
// answers.
func (s *RedisServer) Start() {
	s.t.Helper()
	s.output.Reset()
	server, ended := exec.CommandContext(context.Background(), s.binary, s.args...), make(chan struct{})
	server.Stdout, server.Stderr = &s.output, &s.output
	if err := server.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.server, s.ended = server, ended
	go func() {
		defer close(ended)
		_ = server.Wait() // it was killed, or its output says why it ended
	}()
	s.waitUntil("answers", func(ctx context.Context) bool { return s.Client.Ping(ctx).Err() == nil })
}

// waitUntil waits until the condition holds, and gives up when the process ends.
func (s *RedisServer) waitUntil(what string, holds func(ctx context.Context) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !holds(ctx) {
		select {
		case <-look.C:
		case <-s.ended:
			s.t.Fatalf("the Redis at %s ended before it %s:\n%s", s.Address, what, s.output.String())
		case <-ctx.Done():
			s.t.Fatalf("no Redis at %s that %s within 20 s", s.Address, what)
		}
	}
}

// Freeze makes it hang: the kernel still accepts connections for it.
func (s *RedisServer) Freeze() { s.signal(syscall.SIGSTOP) }

// Continue ends a Stop. What was sent to it meanwhile it does now.
func (s *RedisServer) Continue() { s.signal(syscall.SIGCONT) }

func (s *RedisServer) signal(signal os.Signal) {
	s.t.Helper()
	if err := s.server.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends it at once, as a crash does, and returns when it has ended.
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	<-s.ended
}

// end is Kill of a server that may not run.
func (s *RedisServer) end() {
	if s.server != nil {
		_ = s.server.Process.Kill()
		<-s.ended
	}
}

// DeleteData removes all it has kept on disk, between Kill and Start.
func (s *RedisServer) DeleteData() {
	s.t.Helper()
	kept, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range kept {
		if err := os.RemoveAll(name); err != nil {
			s.t.Fatal(err)
		}
	}
}

// StopReplication has a replica lose touch with its primary: from now on it misses what
// happens there. Stopping it wouldn't do, for it would read on from the kernel
// what was sent to it meanwhile.
func (s *RedisServer) StopReplication() {
	s.t.Helper()
	s.replicaOf("127.0.0.1", "1") // nobody listens there
}

// Promote makes a replica a primary, with the data it has.
func (s *RedisServer) Promote() {
	s.t.Helper()
	s.replicaOf("NO", "ONE")
}

func (s *RedisServer) replicaOf(host, port string) {
	s.t.Helper()
	if err := s.Client.ReplicaOf(s.t.Context(), host, port).Err(); err != nil {
		s.t.Fatal(err)
	}
}
