package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
)

// injectBrokerFault freezes the broker, or kills and restarts it. A killed broker loses no data,
// because the operating system keeps the written data in its page cache.
func (t *injector) injectBrokerFault(ctx context.Context, f fault) error {
	begin, end := []string{"signal", "kafka", "STOP"}, []string{"signal", "kafka", "CONT"}
	if f.name == "broker killed" {
		begin, end = []string{"signal", "kafka", "KILL"}, []string{"up", "kafka"}
	}
	if _, err := t.s.RunServices(ctx, begin...); err != nil {
		return err
	}
	err := harness.Pause(ctx, f.length)
	_, ended := t.s.RunServices(context.WithoutCancel(ctx), end...)
	if ended != nil && ctx.Err() == nil { // scripts/services waits a minute for the start of the broker; on a busy machine the start may take longer, so wait again
		_, ended = t.s.RunServices(ctx, end...)
	}
	return errors.Join(err, ended)
}

// startPersistentRedis starts a Redis with an append-only file in its own directory, so that it
// keeps acknowledged writes across a kill.
func (s *site) startPersistentRedis(ctx context.Context, address string, more ...string) (*harness.Process, error) {
	dir := s.redisDir(address)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return s.StartRedis(ctx, address, append([]string{"--dir", dir, "--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync-delay", "0"}, more...)...)
}

// redisDir returns the directory of the Redis at an address.
func (s *site) redisDir(address string) string {
	return filepath.Join(s.Dir, "redis-"+strings.ReplaceAll(address, ":", "-"))
}

// startReplica starts a replica of Redis. It replicates through a proxy that can be stalled.
func (t *injector) startReplica(ctx context.Context, address string) (err error) {
	if t.replicaLink == nil {
		if t.replicaLink, err = harness.NewProxy(ctx, t.s.Redis.Address, nil); err != nil {
			return err
		}
		t.s.OnClose(t.replicaLink.Close)
	}
	t.replicaLink.Redirect(t.s.Redis.Address)
	host, port, err := net.SplitHostPort(t.replicaLink.Address())
	if err != nil {
		return err
	}
	t.replica, err = t.s.startPersistentRedis(ctx, address, "--replicaof", host+" "+port)
	return err
}

func (t *injector) injectRedisFault(ctx context.Context, f fault) (err error) {
	switch f.name {
	case "Redis frozen":
		return t.s.Redis.FreezeFor(ctx, f.length)
	case failover:
		return t.failover(ctx, f.length)
	}
	t.s.Redis.Kill()
	if strings.HasSuffix(f.name, "its data lost") {
		if err := os.RemoveAll(t.s.redisDir(t.s.Redis.Address)); err != nil {
			return err
		}
	}
	if err := harness.Pause(ctx, f.length); err != nil {
		return err
	}
	t.s.Redis, err = t.s.startPersistentRedis(ctx, t.s.Redis.Address)
	return err
}

// failover kills Redis and promotes its replica. Before the kill the replica receives no writes for
// the duration `gap`, so the writes of that time are lost. The killed server is restarted as the
// replica of the new primary.
func (t *injector) failover(ctx context.Context, gap time.Duration) error {
	old, next := t.s.Redis, t.replica
	err := harness.Poll(ctx, harness.Timeout, func() (bool, error) { // wait for the replica: after another fault it may have to synchronise with Redis first
		state, err := replication(ctx, next)
		return state["master_link_status"] == "up", err
	})
	if err != nil {
		return fmt.Errorf("wait for the replication link: %w", err)
	}
	t.replicaLink.Stall(true)
	err = harness.Pause(ctx, gap)
	had, asked := replication(ctx, old)
	old.Kill()
	t.replicaLink.Cut() // Cut drops the writes that the proxy has buffered; without it Stall(false) would forward them to the replica
	t.replicaLink.Stall(false)
	if err := errors.Join(err, asked); err != nil {
		return err
	}
	has, err := replication(ctx, next, "REPLICAOF", "NO", "ONE")
	if err != nil {
		return err
	}
	for _, a := range t.instances {
		a.redis.Redirect(next.Address)
	}
	t.s.Redis = next
	t.mu.Lock()
	t.lostBytes = append(t.lostBytes, replicationOffset(had)-replicationOffset(has))
	t.mu.Unlock()
	return t.startReplica(ctx, old.Address)
}

// replication runs a command if one is given. Then it returns the fields of the section
// "replication" of INFO.
func replication(ctx context.Context, p *harness.Process, command ...any) (map[string]string, error) {
	client := redis.NewClient(&redis.Options{Addr: p.Address, MaxRetries: -1})
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

// replicationOffset returns the number of bytes of writes that a Redis has received, from its
// replication fields.
func replicationOffset(replication map[string]string) int {
	n, _ := strconv.Atoi(replication["master_repl_offset"])
	return n
}

// expireClaims makes all scheduled retries due at once, as if the claims on them had expired. It
// returns the number of retries.
func (s *site) expireClaims(ctx context.Context) (int, error) {
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	now := time.Now()
	ended, err := conn.Exec(ctx, "UPDATE update_status SET next_retry_at = $2 WHERE source = $1 AND state = 'RETRYING' AND next_retry_at > $2", s.Source, now.UnixMicro())
	if err != nil {
		return 0, err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Redis.Address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	return int(ended.RowsAffected()), client.Publish(ctx, "retries:"+s.Source, now.UnixMilli()).Err() // this message makes all workers enqueue the due retries now
}
