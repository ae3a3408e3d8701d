package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// process is one that the scenario started.
type process struct {
	*exec.Cmd
	name    string
	found   string // what was looked for in what it printed
	address string // a Redis'
	done    chan struct{}
}

// start starts a role and waits until it prints what the pattern says. What it
// prints is kept in a file.
func (s *site) start(ctx context.Context, name, pattern string, env []string, args ...string) (*process, error) {
	return s.startProgram(ctx, name, pattern, env, s.binary, args...)
}

func (s *site) startProgram(ctx context.Context, name, pattern string, env []string, program string, args ...string) (*process, error) {
	// One that is started again goes on in the same file.
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// Not ended by ctx: an interrupted scenario stops them in order too.
	p := &process{Cmd: exec.CommandContext(context.WithoutCancel(ctx), program, args...), name: name, done: make(chan struct{})}
	p.Env = append(os.Environ(), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's ^C is for the scenario
	reader, writer := io.Pipe()
	p.Stdout, p.Stderr = writer, writer
	if err := p.Start(); err != nil {
		_ = log.Close()
		return nil, err
	}
	go func() { _ = p.Wait(); _ = writer.Close() }()
	found := make(chan string, 1)
	go func() {
		defer close(p.done)
		defer func() { _ = log.Close() }()
		want := regexp.MustCompile(pattern)
		seen := false
		for lines := bufio.NewScanner(io.TeeReader(reader, log)); lines.Scan(); {
			if m := want.FindStringSubmatch(lines.Text()); m != nil && !seen {
				seen = true
				found <- m[len(m)-1]
			}
		}
		close(found)
	}()
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	s.later(p.stop)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case text, ok := <-found:
		if !ok {
			return nil, fmt.Errorf("%s ended before it was ready", name)
		}
		p.found = text
		return p, nil
	case <-limit.C:
		return nil, fmt.Errorf("%s is not ready within %v", name, patience)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stop asks the process to end, and waits for it; one that leans on a Redis that was
// killed may not be able to.
func (p *process) stop() {
	_ = p.Process.Signal(syscall.SIGTERM)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-p.done:
	case <-limit.C:
		p.kill()
	}
}

// kill ends it as a crash does.
func (p *process) kill() {
	_ = p.Process.Kill()
	<-p.done
}

// ownRedis starts a Redis that may be killed.
func (s *site) ownRedis(ctx context.Context) (*process, error) {
	port, err := s.freePort(ctx)
	if err != nil {
		return nil, err
	}
	return s.redisAt(ctx, net.JoinHostPort(ownHost(ctx), port))
}

// ownHost returns a loopback address that other runs do not use, where the machine has
// more than one: nobody else can then take a killed Redis' place.
func ownHost(ctx context.Context) string {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254), 1+rand.IntN(254))
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "127.0.0.1"
	}
	_ = l.Close()
	return host
}

// redisAt starts one at an address, where one may have been killed.
func (s *site) redisAt(ctx context.Context, address string, more ...string) (*process, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("there is no redis-server, and the scenario kills one of its own; install it with: apt-get install -y --no-install-recommends redis-server")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	args := append([]string{"--bind", host, "--port", port, "--dir", s.dir, "--save", "", "--maxmemory-policy", "noeviction"}, more...)
	p, err := s.startProgram(ctx, "redis", "Ready to accept connections", nil, path, args...)
	if err != nil {
		return nil, err
	}
	p.address = address
	return p, nil
}

// freePort returns one below those that the kernel gives to outgoing connections:
// nobody must get it while the Redis is down. None is returned twice, for a process
// may take its own only after it has said that it is up. Each site begins elsewhere: it
// would else take the port of another's Redis, while that is down.
func (s *site) freePort(ctx context.Context) (string, error) {
	if s.port == 0 {
		s.port = 20_000 + rand.IntN(9_000)
	}
	for s.port < 30_000 {
		port := strconv.Itoa(s.port)
		s.port++
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return port, l.Close()
		}
	}
	return "", errors.New("there is no free port between 20000 and 30000")
}
