package harness

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// UseRedisCluster makes the site use the shared Redis Cluster. Close deletes the site's keys
// from the cluster.
func (s *Site) UseRedisCluster() error {
	addresses, err := ServiceAddress("FRESHET_TEST_REDIS_CLUSTER")
	if err != nil {
		return err
	}
	s.RedisCluster = strings.Split(addresses, ",")
	s.OnClose(func() { _ = s.deleteKeys() })
	return nil
}

// ScanKeys returns the keys of a Redis node that match a pattern.
func ScanKeys(ctx context.Context, node *redis.Client, pattern string) (all []string, err error) {
	for i := node.Scan(ctx, 0, pattern, 1000).Iterator(); ; {
		if !i.Next(ctx) {
			return all, i.Err()
		}
		all = append(all, i.Val())
	}
}

// deleteKeys deletes the keys of the site's sources from the cluster.
func (s *Site) deleteKeys() error {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: s.RedisCluster})
	defer func() { _ = rdb.Close() }()
	return rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) (err error) {
		for _, name := range s.names() {
			all, failed := ScanKeys(ctx, node, "*{"+name+"*")
			err = errors.Join(err, failed)
			for _, key := range all {
				err = errors.Join(err, node.Del(ctx, key).Err())
			}
		}
		return err
	})
}
