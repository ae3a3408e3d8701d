package main

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// judgeContract judges what arrived at the upstream by its contract.
func (t *table) judgeContract(st simulator.Stats) {
	t.judge("most calls in a sliding second, refused", fmt.Sprintf("%d, %d", st.MaxInSlidingSecond, st.Refused), "<=500, 0",
		st.MaxInSlidingSecond <= 500 && st.Refused == 0)
}

// judgeLoss judges that nothing was given up or taken for a failure.
func (s *site) judgeLoss(ctx context.Context, t *table) error {
	letters, err := s.DeadLetters(ctx)
	if err != nil {
		return err
	}
	failed, err := s.Number(ctx, harness.FailedRows)
	t.judge("dead letters, failures written down", fmt.Sprintf("%d, %d", letters, failed), "0, 0", letters+failed == 0)
	return err
}
