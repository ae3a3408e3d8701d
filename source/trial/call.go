package trial

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/source"
)

// CallsPerDocument is the maximum number of calls that one Call makes for each document: one for the
// document, and one for a redirect.
const CallsPerDocument = 2

// Answer has the responses of the upstream to one Call, and their class by the rules of the source.
type Answer struct {
	Responses *source.Responses
	Documents []source.Inspection
	Class     source.Class
	// Content is the stored content, and Hashed its part without the ignored values. Hash is the
	// SHA-256 of Hashed in hexadecimal form. They are empty unless Class is OK.
	Content, Hashed []byte
	Hash            string
	Validator       source.Validator
	RetryAfter      time.Duration
	Err             error // the reason why there is no content; nil means that there is content
	Took            time.Duration
}

// Call fetches the first page of each document of one entity. An error means that the request is
// invalid or that a call was not sent; the error of a sent call is in Answer.Err.
//
// choose returns the candidate credential to use; nil uses the first candidate.
func Call(ctx context.Context, s *source.Source, r source.Request, choose func(candidates []string) (string, error)) (Answer, error) {
	plan, err := s.Plan(r)
	if err != nil {
		return Answer{}, err
	}
	plan.OnePage()
	started := time.Now()
	responses, err := s.Fetch(ctx, plan, &budget{choose: choose, max: int64(CallsPerDocument * plan.Calls())})
	if err != nil {
		return Answer{}, err
	}
	now := time.Now()
	a := Answer{Responses: responses, Took: now.Sub(started), Documents: s.Inspect(responses, now)}
	o := s.Read(responses, now)
	a.Class, a.Validator, a.RetryAfter, a.Err = o.Class, o.Validator, o.RetryAfter, o.Err
	if o.Content != nil {
		a.Content, a.Hashed, a.Hash = bytes.Clone(o.Content.Bytes), o.Content.Hashed(), hex.EncodeToString(o.Content.Hash[:])
		o.Content.Release()
	}
	if o.Page != nil {
		a.Content, a.Hashed = o.Page.Content()
		sum := sha256.Sum256(a.Hashed)
		a.Hash = hex.EncodeToString(sum[:])
	}
	return a, nil
}

// budget issues at most max permits, without a wait.
type budget struct {
	choose func(candidates []string) (string, error)
	max    int64
	used   atomic.Int64
}

var errBudget = errors.New("the call was not sent")

// Acquire implements source.Permits.
func (b *budget) Acquire(_ context.Context, c source.Call) (source.Permit, error) {
	credential := c.Credentials[0]
	if b.choose != nil {
		var err error
		if credential, err = b.choose(c.Credentials); err != nil {
			return nil, err
		}
	}
	if b.used.Add(1) > b.max {
		return nil, fmt.Errorf("%w, because a trial of this facet sends at most %d calls, and the upstream answered all of them with a redirect or closed the connection", errBudget, b.max)
	}
	return permit{credential}, nil
}

// permit is the right to send one call immediately.
type permit struct{ credential string }

func (permit) Spend(context.Context) error { return nil }
func (p permit) Credential() string        { return p.credential }
func (permit) Release()                    {}
func (permit) Written()                    {}
func (permit) Answered()                   {}
func (permit) Finished(source.CallResult)  {}
