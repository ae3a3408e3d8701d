package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// services asks scripts/services, which knows how a broker is run, for something to be
// done with a set of the site's own.
func (s *site) services(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "scripts/services", args...)
	c.Env = append(os.Environ(), "FRESHET_SERVICES_DIR="+filepath.Join(s.dir, "services"))
	var said strings.Builder
	c.Stderr = &said
	text, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("scripts/services %s: %w\n%s", strings.Join(args, " "), err, said.String())
	}
	return string(text), nil
}

// ownKafka starts a broker that may be stopped and killed, for the one that the other
// scenarios have is everybody's.
func (s *site) ownKafka(ctx context.Context) error {
	s.later(func() {
		ctx := context.Background()
		if text, err := s.services(ctx, "logs", "kafka"); err == nil {
			_ = os.WriteFile(filepath.Join(s.dir, "kafka.log"), []byte(text), 0o600)
		}
		_, _ = s.services(ctx, "signal", "kafka", "KILL") // nobody will want its data
		if _, err := s.services(ctx, "down"); err != nil {
			fmt.Fprintln(s.out, err)
		}
	})
	text, err := s.services(ctx, "up", "kafka")
	if err != nil {
		return err
	}
	address, ok := strings.CutPrefix(oneLine(text), "export FRESHET_TEST_KAFKA=")
	if !ok {
		return fmt.Errorf("scripts/services does not say where Kafka is: %q", text)
	}
	s.broker = address
	return nil
}

// hurtBroker stops the broker, or kills it and has it start again with what it had
// written: the kernel keeps that for it.
func (t *torturer) hurtBroker(ctx context.Context, h hurt) error {
	begin, end := []string{"signal", "kafka", "STOP"}, []string{"signal", "kafka", "CONT"}
	if h.name == "broker killed" {
		begin, end = []string{"signal", "kafka", "KILL"}, []string{"up", "kafka"}
	}
	if _, err := t.s.services(ctx, begin...); err != nil {
		return err
	}
	err := pause(ctx, h.length)
	_, ended := t.s.services(context.WithoutCancel(ctx), end...)
	if ended != nil && ctx.Err() == nil { // it is given a minute to start, which a busy machine may exceed
		_, ended = t.s.services(ctx, end...)
	}
	return errors.Join(err, ended)
}

// keeper starts a Redis that writes down all that it holds before it answers, in a
// folder of its own.
func (s *site) keeper(ctx context.Context, address string, more ...string) (*process, error) {
	dir := s.kept(address)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return s.redisAt(ctx, address, append([]string{"--dir", dir, "--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync-delay", "0"}, more...)...)
}

// kept is the folder of the Redis at an address.
func (s *site) kept(address string) string {
	return filepath.Join(s.dir, "redis-"+strings.ReplaceAll(address, ":", "-"))
}

// replicate starts a replica of the Redis, which hears of what is written over a way
// that can be held up.
func (t *torturer) replicate(ctx context.Context, address string) (err error) {
	if t.link == nil {
		if t.link, err = newProxy(ctx, t.s.redis.address); err != nil {
			return err
		}
		t.s.later(t.link.close)
	}
	t.link.lead(t.s.redis.address)
	host, port, err := net.SplitHostPort(t.link.address())
	if err != nil {
		return err
	}
	t.replica, err = t.s.keeper(ctx, address, "--replicaof", host+" "+port)
	return err
}

func (t *torturer) hurtRedis(ctx context.Context, h hurt) (err error) {
	switch h.name {
	case "Redis stopped":
		return stopped(ctx, t.s.redis, h.length)
	case failover:
		return t.failOver(ctx, h.length)
	}
	t.s.redis.kill()
	if strings.HasSuffix(h.name, "its data lost") {
		if err := os.RemoveAll(t.s.kept(t.s.redis.address)); err != nil {
			return err
		}
	}
	if err := pause(ctx, h.length); err != nil {
		return err
	}
	t.s.redis, err = t.s.keeper(ctx, t.s.redis.address)
	return err
}

// failOver kills the Redis and puts its replica in its place, which has not heard of the
// last that was acknowledged, for so long. The one that was killed comes back as the
// replica, so that it can happen again.
func (t *torturer) failOver(ctx context.Context, gap time.Duration) error {
	old, next := t.s.redis, t.replica
	err := within(ctx, patience, func() (bool, error) { // it may have to begin anew after another fault
		state, err := replication(ctx, next)
		return state["master_link_status"] == "up", err
	})
	if err != nil {
		return fmt.Errorf("the replica does not follow: %w", err)
	}
	t.link.stall(true)
	err = pause(ctx, gap)
	had, asked := replication(ctx, old)
	old.kill()
	t.link.cut() // before it flows again: what it holds is lost
	t.link.stall(false)
	if err := errors.Join(err, asked); err != nil {
		return err
	}
	has, err := replication(ctx, next, "REPLICAOF", "NO", "ONE")
	if err != nil {
		return err
	}
	for _, a := range t.cast {
		a.redis.lead(next.address)
	}
	t.s.redis = next
	t.mu.Lock()
	t.forgot = append(t.forgot, offset(had)-offset(has))
	t.mu.Unlock()
	return t.replicate(ctx, old.address)
}

// replication returns what a Redis says of it, after a command if there is one.
func replication(ctx context.Context, p *process, command ...any) (map[string]string, error) {
	client := redis.NewClient(&redis.Options{Addr: p.address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	if len(command) > 0 {
		if err := client.Do(ctx, command...).Err(); err != nil {
			return nil, err
		}
	}
	text, err := client.Info(ctx, "replication").Result()
	all := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		all[name] = value
	}
	return all, err
}

// offset is how many bytes of writes a Redis knows of.
func offset(replication map[string]string) int {
	n, _ := strconv.Atoi(replication["master_repl_offset"])
	return n
}

// endClaims has the retries that are claimed be due, as they are when their claims end,
// and returns how many.
func (s *site) endClaims(ctx context.Context) (int, error) {
	conn, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	now := time.Now()
	ended, err := conn.Exec(ctx, "UPDATE update_status SET next_retry_at = $2 WHERE source = $1 AND state = 'RETRYING' AND next_retry_at > $2", s.source, now.UnixMicro())
	if err != nil {
		return 0, err
	}
	client := redis.NewClient(&redis.Options{Addr: s.redis.address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	return int(ended.RowsAffected()), client.Publish(ctx, "retries:"+s.source, now.UnixMilli()).Err() // so that they look
}
