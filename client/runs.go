package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// MaxRunKeys is the maximum number of keys in one call of StartRun.
const MaxRunKeys = 10_000

// RunState is the state of a run.
type RunState string

// The states of a run.
const (
	RunRunning   RunState = "RUNNING"
	RunCompleted RunState = "COMPLETED"
	RunFailed    RunState = "FAILED"
	RunCancelled RunState = "CANCELLED"
)

// Run is a unit of work that fetches many entities and collections.
type Run struct {
	ID     string `json:"id"`
	Source string `json:"source"`
	Name   string `json:"name"`
	// Scope identifies the set of keys: the only key, a prefix followed by *, or a hash of several
	// keys.
	Scope string   `json:"scope"`
	Keys  int      `json:"keys"`
	State RunState `json:"state"`
	// Waiting is true if the run waits for the end of the earlier run of the same keys.
	Waiting   bool      `json:"waiting"`
	Attempt   int       `json:"attempt"` // number of the attempt: 1, and one more after each retry
	Steps     RunSteps  `json:"steps"`
	CreatedAt time.Time `json:"createdAt"`
	StartedAt time.Time `json:"startedAt"` // start of the current attempt
	Deadline  time.Time `json:"deadline"`
	EndedAt   time.Time `json:"endedAt"` // end of the run; zero: the run is active
	// Error is why the run has failed; empty: it has not failed, or its failed steps are the reason.
	Error string `json:"error"`
}

// RunSteps are the numbers of steps of a run by state.
type RunSteps struct {
	Total     int `json:"total"`
	Open      int `json:"open"`
	Done      int `json:"done"`
	NotFound  int `json:"notFound"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
}

// RunKeys selects the keys of a run: the keys in Keys, or, if Keys is empty, all registered keys that
// begin with Prefix.
type RunKeys struct {
	Keys   []string
	Prefix string
}

// MarshalJSON returns the body of the request.
func (k RunKeys) MarshalJSON() ([]byte, error) {
	if len(k.Keys) > 0 {
		return json.Marshal(map[string][]string{"keys": k.Keys})
	}
	return json.Marshal(map[string]string{"prefix": k.Prefix})
}

// StartRun starts a run. If no new run is needed, because an earlier run fetches the same data, it
// returns that run and started is false. If the request is repeated after a failure, the service starts
// only one run, because both requests have the same idempotencyKey. If idempotencyKey is empty, a
// random key is used for this call. A caller that may repeat the call after a crash must pass its own
// key.
func (c *Client) StartRun(ctx context.Context, source, name string, keys RunKeys, idempotencyKey string) (run Run, started bool, err error) {
	if len(keys.Keys) > MaxRunKeys || (len(keys.Keys) > 0 && keys.Prefix != "") {
		return Run{}, false, fmt.Errorf("start a run of %d keys and the prefix %q: a run has 1 to %d keys, or a prefix", len(keys.Keys), keys.Prefix, MaxRunKeys)
	}
	body, err := json.Marshal(keys)
	if err != nil {
		return Run{}, false, fmt.Errorf("encode the keys of the run: %w", err)
	}
	if idempotencyKey == "" {
		idempotencyKey = rand.Text()
	}
	answer, err := c.do(ctx, &request{
		method: http.MethodPost, path: "/v1/runs/" + url.PathEscape(source) + "/" + url.PathEscape(name), body: body, idempotency: idempotencyKey, safe: true,
	})
	if err != nil {
		return Run{}, false, err
	}
	run, err = runOf(answer)
	return run, answer.Code == http.StatusAccepted, err
}

// GetRun reads a run.
func (c *Client) GetRun(ctx context.Context, id string) (Run, error) { return c.getRun(ctx, id, 0) }

func (c *Client) getRun(ctx context.Context, id string, wait time.Duration) (Run, error) {
	answer, err := c.do(ctx, &request{method: http.MethodGet, path: "/v1/runs/" + url.PathEscape(id), wait: wait, safe: true})
	if err != nil {
		return Run{}, err
	}
	return runOf(answer)
}

// runWait is how long the service waits for the end of the run in one request of WaitRun.
const runWait = 30 * time.Second

// WaitRun waits until a run has ended, and returns the run. It returns an error if ctx ends first. It
// calls progress with each state of the run that it reads. progress may be nil.
func (c *Client) WaitRun(ctx context.Context, id string, progress func(Run)) (Run, error) {
	for {
		began := time.Now()
		run, err := c.getRun(ctx, id, runWait)
		if err != nil {
			return Run{}, err
		}
		if progress != nil {
			progress(run)
		}
		if run.State != RunRunning {
			return run, nil
		}
		if time.Since(began) < time.Second { // a service that is stopping responds before the wait has passed, so pause before the next request
			if err := sleep(ctx, time.Second); err != nil {
				return Run{}, err
			}
		}
	}
}

func runOf(answer Response) (run Run, err error) {
	switch {
	case answer.Code >= http.StatusBadRequest:
		return Run{}, answer.Problem()
	case json.Unmarshal(answer.Text, &run) != nil || run.ID == "" || run.State == "":
		return Run{}, unexpected(answer)
	}
	return run, nil
}
