package producer_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
)

// Two requests for one entity cause only one record: the record of the first request covers the
// second request.
func ExampleProducer() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, schemas.RequestTopic("nexon", schemas.Low)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()
	client, err := kgo.NewClient(append(producer.ClientOptions(1000), kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics())...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	p := producer.New(rdb, client, 1000, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), observe.Tracer{})
	stopped := make(chan error)
	go func() { stopped <- p.Run(ctx) }()

	request := producer.Request{
		Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "1234"},
		Lane:   schemas.Low, Reason: schemas.Prefetch,
	}
	first := p.EnqueueAndWait(ctx, request)
	second := p.EnqueueAndWait(ctx, request)
	fmt.Println(first.Outcome, second.Outcome, first.Number == second.Number)
	cancel()
	fmt.Println(<-stopped)
	// Output:
	// PUBLISHED ALREADY_PROCESSING true
	// <nil>
}
