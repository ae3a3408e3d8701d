package topics_test

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/topics"
)

// Ensure creates the topics of a source. The second call creates nothing, because all topics exist.
func ExampleEnsure() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	for range 2 {
		all, err := topics.Ensure(context.Background(), kadm.NewClient(client), "nexon", topics.Replication{})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, topic := range all {
			fmt.Println(topic.Name, topic.Created)
		}
	}
	// Output:
	// nexon.update-priority-high true
	// nexon.update-priority-low true
	// nexon.update-dlq true
	// nexon.changes true
	// nexon.runs true
	// nexon.update-priority-high false
	// nexon.update-priority-low false
	// nexon.update-dlq false
	// nexon.changes false
	// nexon.runs false
}
