package scheduler_test

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

// The budget limits the prefetch rate. It allows nothing while too much work waits in the LOW
// topic.
func ExampleBudget() {
	budget, err := scheduler.NewBudget(scheduler.BudgetConfig{})
	if err != nil {
		panic(err)
	}
	now := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	capacity := scheduler.Capacity{PerSecond: 100, Cost: 1, Share: 1}
	budget.Allowance(capacity, now) // the credit is 0 at the first call, and grows from then on
	for range 2 {
		now = now.Add(time.Second)
		n, _ := budget.Allowance(capacity, now)
		budget.Spend(float64(n))
		fmt.Println(n, "entities")
	}
	capacity.Queued = 6000 // the topic is full: it contains the work of one minute
	n, _ := budget.Allowance(capacity, now.Add(time.Second))
	fmt.Println(n, "entities")
	// Output:
	// 100 entities
	// 100 entities
	// 0 entities
}

// A policy decides on each due entity. It either enqueues a refresh, or skips an entity that was
// checked recently. In both cases it returns the next due time.
func ExamplePolicy_Next() {
	config := scheduler.DefaultConfig()
	config.Mode, config.Jitter = scheduler.Tiers, 0
	policy, err := scheduler.NewPolicy(config, scheduler.BudgetConfig{}, 1, scheduler.NewPrice())
	if err != nil {
		panic(err)
	}
	now := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	candidate := prefetched.Candidate{RegisteredEntity: prefetched.RegisteredEntity{
		Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "somebody"},
		Tier:   prefetched.Hot, Pinned: true, Enabled: true, Due: now,
	}}
	for _, checked := range []time.Time{now.Add(-2 * time.Hour), now.Add(-5 * time.Minute)} {
		candidate.State.CheckedAt = checked
		decision := policy.Next(candidate, now)
		fmt.Println("enqueue:", decision.Enqueue, "due within 90 min:", decision.Due.Sub(now) <= 90*time.Minute)
	}
	// Output:
	// enqueue: true due within 90 min: true
	// enqueue: false due within 90 min: true
}
