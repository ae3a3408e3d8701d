package lua_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// nodes returns one Redis client for each node of the cluster, or the only client.
func (e entity) nodes() []*redis.Client {
	e.t.Helper()
	cluster, ok := e.rdb.(*redis.ClusterClient)
	if !ok {
		return []*redis.Client{e.rdb.(*redis.Client)}
	}
	var mu sync.Mutex
	var all []*redis.Client
	err := cluster.ForEachShard(e.t.Context(), func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node)
		return nil
	})
	if err != nil || len(all) < 3 {
		e.t.Fatalf("%d nodes, %v", len(all), err)
	}
	return all
}

// listens subscribes to the channel and returns when the subscription is active.
func (e entity) listens(node *redis.Client, channel string) *redis.PubSub {
	e.t.Helper()
	ps := node.Subscribe(e.t.Context(), channel)
	e.t.Cleanup(func() { _ = ps.Close() })
	m, err := ps.ReceiveTimeout(e.t.Context(), 10*time.Second)
	if _, ok := m.(*redis.Subscription); !ok || err != nil {
		e.t.Fatalf("subscribed with %v, %v", m, err)
	}
	return ps
}

func (e entity) wantMessage(ps *redis.PubSub, channel, want string) {
	e.t.Helper()
	m, err := ps.ReceiveTimeout(e.t.Context(), 10*time.Second)
	if got, ok := m.(*redis.Message); err != nil || !ok || got.Channel != channel || got.Payload != want {
		e.t.Fatalf("received %v, %v; want %q", m, err, want)
	}
}

func TestSettle_PublishesOnEveryNode(t *testing.T) {
	eachRedis(t, func(e entity) {
		channel := "settled:" + e.key
		var all []*redis.PubSub // subscribe to all nodes before the first message is sent, because a later subscription could miss it
		for _, node := range e.nodes() {
			all = append(all, e.listens(node, channel))
		}
		for n, key := range []string{"a", "가 나/{다} 1", `"; '\`, " "} {
			message := fmt.Sprintf("%d character/%s", n, key)
			e.settleTelling(channel, message, int64(n), true, "", 0)
			for _, ps := range all {
				e.wantMessage(ps, channel, message)
			}
		}
	})
}

func TestSettle_PublishesAfterTheWrite(t *testing.T) {
	eachRedis(t, func(e entity) {
		channel := "settled:" + e.key
		ps := e.listens(e.nodes()[0], channel)
		own := e.mustBegin(e.published(high), "HIGH")
		for i, end := range []struct {
			number    int64
			satisfied bool
			hold      string
			field     string
			is        string
		}{
			{own, true, "", "done", fmt.Sprint(own)},
			{own, true, "", "done", fmt.Sprint(own)},         // if the same fetch is settled again, nothing changes
			{own - 1, false, "FAILED", "hold", ""},           // if an earlier fetch fails, the hash gets no hold
			{own - 1, true, "", "done", fmt.Sprint(own)},     // if an earlier fetch succeeds, the hash's field done keeps its value
			{own + 1, false, "", "done", fmt.Sprint(own)},    // if a later fetch fails, the hash's field done keeps its value
			{own + 2, true, "", "done", fmt.Sprint(own + 2)}, // if a fetch succeeds whose number no request has, the hash's field done rises
		} {
			message := fmt.Sprintf("%d character/%d", end.number, i)
			e.settleTelling(channel, message, end.number, end.satisfied, end.hold, minute)
			e.wantMessage(ps, channel, message)
			if got := e.field(end.field); got != end.is {
				e.t.Errorf("end %d: %s is %q, want %q", i, end.field, got, end.is)
			}
		}
		e.settleTelling(channel, "held", own+3, false, "FAILED", minute)
		e.wantMessage(ps, channel, "held")
		if v := e.acquire(high); v.outcome != "HELD" {
			e.t.Errorf("after the message of a hold: got %+v", v)
		}
	})
}
