package consumer_test

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

type permits struct{ *limiter.Limiter }

func (p permits) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return wrapPermit(c)(p.Limiter.Acquire(ctx, lane, limiter.Call{Client: c.Client}))
}

func (p permits) AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return wrapPermit(c)(p.Limiter.AcquireRetry(ctx, lane, limiter.Call{Client: c.Client}))
}

func (p permits) Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return wrapPermit(c)(p.Limiter.Reacquire(ctx, lane, limiter.Call{Client: c.Client}))
}

func wrapPermit(c source.Call) func(*limiter.Permit, error) (consumer.Permit, error) {
	return func(p *limiter.Permit, err error) (consumer.Permit, error) {
		if err != nil {
			return nil, err
		}
		return testPermit{p, c.Credentials[0]}, nil
	}
}

// testPermit is a permit of the limiter that the test uses. It uses the first credential of the call.
type testPermit struct {
	*limiter.Permit
	credential string
}

func (a testPermit) Credential() string { return a.credential }
func (a testPermit) ReportEnd(e source.CallResult) {
	a.Permit.ReportEnd(e.Status, e.Notices, e.Refused)
}
func (testPermit) OpenScopeBreaker(string, time.Duration, time.Duration) {}
func (testPermit) ReportSuccess()                                        {}

// freePermits grants every permit at once, so that only the worker is measured.
type freePermits struct{}

func (freePermits) Acquire(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	return freePermits{}, nil
}

func (freePermits) AcquireRetry(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	return freePermits{}, nil
}

func (freePermits) Reacquire(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	return freePermits{}, nil
}
func (freePermits) BackOff(time.Duration, time.Time)                      {}
func (freePermits) OpenBreaker(time.Duration, time.Duration, time.Time)   {}
func (freePermits) CloseBreaker(time.Time)                                {}
func (freePermits) HighPerSecond() float64                                { return math.Inf(1) }
func (freePermits) LowReserve() float64                                   { return 0 }
func (freePermits) BreakerOpenSince(time.Time) bool                       { return false }
func (freePermits) UntilBreakerOpens() context.Context                    { return context.Background() }
func (freePermits) BreakerClosed() <-chan struct{}                        { return always }
func (freePermits) IsProbe() bool                                         { return false }
func (freePermits) IsSourceProbe() bool                                   { return false }
func (freePermits) Spend() bool                                           { return true }
func (freePermits) Written()                                              {}
func (freePermits) Answered()                                             {}
func (freePermits) Credential() string                                    { return "" }
func (freePermits) ReportEnd(source.CallResult)                           {}
func (freePermits) OpenScopeBreaker(string, time.Duration, time.Duration) {}
func (freePermits) ReportSuccess()                                        {}
func (freePermits) Release()                                              {}

// always is a closed channel. A receive from it returns at once.
var always = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// expiringPermits grants permits that can never be spent, as if Redis answered too slowly.
type expiringPermits struct {
	freePermits
	asked atomic.Int64
}

func (l *expiringPermits) Acquire(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	l.asked.Add(1)
	return expiredPermit{}, nil
}

func (l *expiringPermits) AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return l.Acquire(ctx, lane, c)
}

func (l *expiringPermits) Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return l.Acquire(ctx, lane, c)
}

type expiredPermit struct{ freePermits }

func (expiredPermit) Spend() bool { return false }
