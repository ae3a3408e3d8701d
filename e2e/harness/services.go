package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// RunServices runs scripts/services for the site's own services, in the site's directory, and
// returns its standard output.
func (s *Site) RunServices(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, filepath.Join(s.Root, "scripts", "services"), args...)
	c.Env = append(os.Environ(), "FRESHET_SERVICES_DIR="+filepath.Join(s.Dir, "services"))
	var stderr strings.Builder
	c.Stderr = &stderr
	text, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("scripts/services %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(text), nil
}

// StartKafka starts a broker for this site only, which may be frozen and killed, and sets
// Broker to its address. The site's proxy still forwards to the shared broker.
func (s *Site) StartKafka(ctx context.Context) error {
	s.OnClose(func() {
		ctx := context.Background()
		if text, err := s.RunServices(ctx, "logs", "kafka"); err == nil {
			_ = os.WriteFile(filepath.Join(s.Dir, "kafka.log"), []byte(text), 0o600)
		}
		_, _ = s.RunServices(ctx, "signal", "kafka", "KILL") // KILL, because the broker's data is not needed any more
		if _, err := s.RunServices(ctx, "down"); err != nil {
			fmt.Fprintln(s.Out, err)
		}
	})
	text, err := s.RunServices(ctx, "up", "kafka")
	if err != nil {
		return err
	}
	address, ok := strings.CutPrefix(strings.TrimSpace(text), "export FRESHET_TEST_KAFKA=")
	if !ok {
		return fmt.Errorf("scripts/services up kafka: got %q, want an export of FRESHET_TEST_KAFKA", text)
	}
	s.Broker = address
	return nil
}

// startRedis starts a Redis server for this site only, which may be killed.
func (s *Site) startRedis(ctx context.Context) (*Process, error) {
	port, err := s.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	return s.StartRedis(ctx, net.JoinHostPort(ownHost(ctx), port))
}

// ownHost returns a random loopback address. Other test runs listen on other addresses, so none of
// them can take the port of a killed Redis. ownHost returns 127.0.0.1 if the machine has no other
// loopback address.
func ownHost(ctx context.Context) string {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254), 1+rand.IntN(254))
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "127.0.0.1"
	}
	_ = l.Close()
	return host
}

// StartRedis starts a Redis server at an address, which may be the former address of a killed
// server.
func (s *Site) StartRedis(ctx context.Context, address string, more ...string) (*Process, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server %w; install it with: apt-get install -y --no-install-recommends redis-server", ErrMissing)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	args := append([]string{"--bind", host, "--port", port, "--dir", s.Dir, "--save", "", "--maxmemory-policy", "noeviction"}, more...)
	p, err := s.StartProgram(ctx, "redis", "Ready to accept connections", nil, path, args...)
	if err != nil {
		return nil, err
	}
	p.Address = address
	return p, nil
}

// FreePort returns a free port between 20000 and 30000. The kernel does not use these ports for
// outgoing connections, so the port of a killed Redis stays free. FreePort never returns a port
// twice: a started process may not listen on its port yet, so the port can look free. Each site
// starts at a random port.
func (s *Site) FreePort(ctx context.Context) (string, error) {
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
	return "", errors.New("no free port between 20000 and 30000")
}

// ErrMissing is wrapped by errors about an environment variable that is not set, and about a
// program that is not installed.
var ErrMissing = errors.New("is missing")

// ServiceAddress returns the value of a variable FRESHET_TEST_…. It returns an error if the
// variable is not set.
func ServiceAddress(variable string) (string, error) {
	if value := os.Getenv(variable); value != "" {
		return value, nil
	}
	return "", fmt.Errorf(`%s %w; start the services with: eval "$(scripts/services up)"`, variable, ErrMissing)
}
