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

// RedisServer is a real Redis server that belongs to one test. The test may freeze, kill, restart
// and replace it. It listens on loopback and ends with the test.
type RedisServer struct {
	Address string
	// Client is a client for administrative commands of the test.
	Client *redis.Client

	t      testing.TB
	binary string
	dir    string
	args   []string
	server *exec.Cmd
	output bytes.Buffer  // output of the latest server process; read it only after ended is closed
	ended  chan struct{} // closed when the latest server process has ended
}

// PrivateRedis starts a Redis server and waits until it responds. options are arguments of
// redis-server, such as "--appendonly", "yes"; without options it writes nothing to disk. If
// FRESHET_TEST_REDIS is not set, PrivateRedis starts no server, and skips or fails the test as
// RedisAddress does.
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

// freePort returns a port below the range that the kernel uses for outgoing connections. While the
// Redis server is down, no other process may get its port, not even as the local port of a client.
func freePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := fmt.Sprint(20_000 + rand.IntN(10_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port between 20000 and 30000")
	return ""
}

// Replica starts a replica and waits until it is synchronised with the server.
func (s *RedisServer) Replica(options ...string) *RedisServer {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(s.Address)
	r := PrivateRedis(s.t, append([]string{"--replicaof", host, port}, options...)...)
	r.waitUntil("is synchronised with "+s.Address, func(ctx context.Context) bool {
		info, err := r.Client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	return r
}

// Start restarts the server after Kill, on the same port and with the same data, and waits until it
// responds.
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
		// The error is not needed: if the process ends without Kill, its output contains the
		// reason.
		_ = server.Wait()
	}()
	s.waitUntil("responds", func(ctx context.Context) bool { return s.Client.Ping(ctx).Err() == nil })
}

// waitUntil waits until the condition holds. It fails the test if the server process ends first, or
// after 20 seconds.
func (s *RedisServer) waitUntil(what string, holds func(ctx context.Context) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds(ctx) {
		select {
		case <-tick.C:
		case <-s.ended:
			s.t.Fatalf("the Redis at %s ended before it %s:\n%s", s.Address, what, s.output.String())
		case <-ctx.Done():
			s.t.Fatalf("timed out after 20 s waiting until the Redis at %s %s", s.Address, what)
		}
	}
}

// Freeze suspends the server with SIGSTOP. The kernel still accepts connections, but commands get
// no response until Continue.
func (s *RedisServer) Freeze() { s.signal(syscall.SIGSTOP) }

// Continue resumes a frozen server, which then runs the commands received in the meantime.
func (s *RedisServer) Continue() { s.signal(syscall.SIGCONT) }

func (s *RedisServer) signal(signal os.Signal) {
	s.t.Helper()
	if err := s.server.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the server with SIGKILL, as a crash would, and returns when the process has ended.
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	<-s.ended
}

// end kills the server. Unlike Kill it does not fail the test if the server has already ended.
func (s *RedisServer) end() {
	if s.server != nil {
		_ = s.server.Process.Kill()
		<-s.ended
	}
}

// DeleteData deletes the server's data files, so that the server starts empty. Call it after Kill
// and before Start.
func (s *RedisServer) DeleteData() {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range files {
		if err := os.RemoveAll(name); err != nil {
			s.t.Fatal(err)
		}
	}
}

// StopReplication disconnects a replica from its primary, so that it misses all later writes.
// Freeze does not have this effect: after Continue a replica reads these writes from the kernel's
// buffer.
func (s *RedisServer) StopReplication() {
	s.t.Helper()
	s.replicaOf("127.0.0.1", "1") // the replica gets a primary that does not exist: no server listens on this port
}

// Promote makes a replica a primary. The new primary keeps the data that it has replicated so far.
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
