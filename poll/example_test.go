package poll_test

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/poll"
)

// The first call of enqueue accepts two of three requests. EnqueueAll calls enqueue again for the
// third request.
func ExampleEnqueueAll() {
	enqueue := func(_ context.Context, requests []string) (left []string) {
		accepted := requests[:min(2, len(requests))]
		fmt.Println("accepted:", accepted)
		return requests[len(accepted):]
	}
	left := poll.EnqueueAll(context.Background(), []string{"a", "b", "c"}, func() bool { return true }, enqueue)
	fmt.Println("left:", len(left))
	// Output:
	// accepted: [a b]
	// accepted: [c]
	// left: 0
}
