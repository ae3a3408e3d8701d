package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/sqlite"
)

var errInjected = errors.New("injected by the test")

// faultyStore fails its writes and lookups while its field `down` is set.
type faultyStore struct {
	*sqlite.Store
	down  atomic.Bool
	tries atomic.Int64
	wrote atomic.Int64
}

func (f *faultyStore) States(ctx context.Context, of []schemas.Entity) ([]store.State, error) {
	if f.down.Load() {
		f.tries.Add(1)
		return nil, errInjected
	}
	return f.Store.States(ctx, of)
}

func (f *faultyStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	if f.down.Load() {
		f.tries.Add(1)
		return nil, errInjected
	}
	results, err := f.Store.Write(ctx, writes)
	f.wrote.Add(int64(len(results)))
	return results, err
}

func (f *faultyStore) Statuses(ctx context.Context, of []schemas.Entity) ([]store.Status, error) {
	if f.down.Load() {
		f.tries.Add(1)
		return nil, errInjected
	}
	return f.Store.Statuses(ctx, of)
}

func (f *faultyStore) WriteFailure(ctx context.Context, s store.Status, deadLetter *deadletters.DeadLetter) error {
	if f.down.Load() {
		f.tries.Add(1)
		return errInjected
	}
	return f.Store.WriteFailure(ctx, s, deadLetter)
}

// faultyRequests fails Peek, Begin, Settle or ReleaseOutstanding while the flag of that operation
// is set.
type faultyRequests struct {
	consumer.Requests
	noPeek, noBegin, noSettle, noDischarge atomic.Bool
	tries                                  atomic.Int64
}

func (f *faultyRequests) fails(b *atomic.Bool) bool {
	if b.Load() {
		f.tries.Add(1)
		return true
	}
	return false
}

func (f *faultyRequests) Peek(ctx context.Context, requests []schemas.UpdateRequest, stored []int64) ([]schemas.Verdict, error) {
	if f.fails(&f.noPeek) {
		return nil, errInjected
	}
	return f.Requests.Peek(ctx, requests, stored)
}

func (f *faultyRequests) Begin(ctx context.Context, r schemas.UpdateRequest, stored int64) (schemas.Verdict, int64, error) {
	if f.fails(&f.noBegin) {
		return "", 0, errInjected
	}
	return f.Requests.Begin(ctx, r, stored)
}

func (f *faultyRequests) Settle(ctx context.Context, ends []schemas.End) error {
	if f.fails(&f.noSettle) {
		return errInjected
	}
	return f.Requests.Settle(ctx, ends)
}

func (f *faultyRequests) ReleaseOutstanding(ctx context.Context, ended []schemas.Outstanding) error {
	if f.fails(&f.noDischarge) {
		return errInjected
	}
	return f.Requests.ReleaseOutstanding(ctx, ended)
}
