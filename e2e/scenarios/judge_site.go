package main

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// judgeContract judges whether the calls that the upstream received stayed within its quota.
func (t *table) judgeContract(st simulator.Stats) {
	t.judge("max calls in a sliding second, rejected calls", fmt.Sprintf("%d, %d", st.MaxInSlidingSecond, st.Refused), "<=500, 0",
		st.MaxInSlidingSecond <= 500 && st.Refused == 0)
}

// judgeLoss judges that there is no dead letter and no recorded failure.
func (s *site) judgeLoss(ctx context.Context, t *table) error {
	deadLetters, err := s.DeadLetters(ctx)
	if err != nil {
		return err
	}
	failed, err := s.Number(ctx, harness.FailedRows)
	t.judge("dead letters, recorded failures", fmt.Sprintf("%d, %d", deadLetters, failed), "0, 0", deadLetters+failed == 0)
	return err
}
