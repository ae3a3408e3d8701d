package app

import (
	"context"
	"fmt"
	"testing"
)

func TestGroup_StopWhileStartingIsNoError(t *testing.T) {
	g := newGroup(t.Context())
	g.run(func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("ask Redis for its settings: %w", ctx.Err())
	})
	if err := g.stop(); err != nil {
		t.Errorf("error of the stop: got %v, want none", err)
	}
}
