package settings

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/store"
)

// State is a source's quota and what was changed of it. The json tags are its
// form in the admin API.
type State struct {
	Source     string           `json:"source"`
	Stopped    bool             `json:"stopped"`
	Revision   int64            `json:"revision"`  // rises with each change; 0: nothing was ever changed
	ChangedAt  *time.Time       `json:"changedAt"` // nil at revision 0, as ChangedBy
	ChangedBy  *string          `json:"changedBy"`
	Configured Quota            `json:"configured"`
	Override   limiter.Override `json:"override"`
	// Effective is what both come to; nil, with the Problem, if the change does
	// not fit a configuration that is newer than it.
	Effective *Quota `json:"effective"`
	Problem   string `json:"problem,omitempty"`
}

// Quota is what can be changed of a quota, and what is needed to read it.
type Quota struct {
	Policies    []Policy          `json:"policies"`
	LowCeilings []limiter.Ceiling `json:"lowCeilings"`
}

// Policy is one limit, in calls a window.
type Policy struct {
	Name        string          `json:"name"`
	Window      string          `json:"window"` // a duration, or day
	TimeZone    string          `json:"timeZone,omitempty"`
	Limit       int             `json:"limit"`
	Target      int             `json:"target"` // 0: as many as the limit's bound allows
	HighReserve limiter.Reserve `json:"highReserve"`
	LowReserve  int             `json:"lowReserve"`
}

func quotaOf(c limiter.Config) Quota {
	q := Quota{Policies: []Policy{}, LowCeilings: append([]limiter.Ceiling{}, c.LowCeilings...)}
	for _, p := range c.Policies {
		q.Policies = append(q.Policies, Policy{p.Name, p.Window.String(), p.TimeZone, p.Limit, p.Target, p.HighReserve, p.LowReserve})
	}
	return q
}

// effective returns what a change comes to, or why it can't be held.
func effective(config limiter.Config, o limiter.Override) (Quota, error) {
	changed, err := config.With(o)
	if err != nil {
		return Quota{}, err
	}
	if _, err := limiter.NewQuota(changed); err != nil {
		return Quota{}, err
	}
	return quotaOf(changed), nil
}

func stateOf(kept store.Setting, config limiter.Config) (State, error) {
	override, err := overrideOf(kept)
	if err != nil {
		return State{}, err
	}
	state := State{
		Source: kept.Source, Stopped: override.Stopped, Revision: kept.Revision, Configured: quotaOf(config), Override: override,
	}
	if kept.Revision > 0 {
		state.ChangedAt, state.ChangedBy = &kept.ChangedAt, &kept.ChangedBy
	}
	if q, err := effective(config, override); err != nil {
		state.Problem = err.Error()
	} else {
		state.Effective = &q
	}
	return state, nil
}

func overrideOf(kept store.Setting) (o limiter.Override, err error) {
	if kept.Value == nil {
		return o, nil
	}
	if err := json.Unmarshal(kept.Value, &o); err != nil {
		return o, fmt.Errorf("the stored settings of %s can't be read: %w; mend their row in the table settings", kept.Source, err)
	}
	return o, nil
}

// Quota returns a source's newest change and its revision, as limiter.Settings
// has it.
func (s *Settings) Quota(ctx context.Context, source string) (limiter.Override, int64, error) {
	kept, err := s.store.Setting(ctx, source)
	if err != nil {
		return limiter.Override{}, 0, err
	}
	o, err := overrideOf(kept)
	return o, kept.Revision, err
}

// Used returns the newest count of a policy's calls, as limiter.Usage has it.
func (s *Settings) Used(ctx context.Context, source, policy string) (limiter.Count, error) {
	u, err := s.store.Used(ctx, source, policy)
	return limiter.Count(u), err
}

// SetUsed writes a count, as limiter.Usage has it.
func (s *Settings) SetUsed(ctx context.Context, source, policy string, c limiter.Count) error {
	return s.store.SetUsed(ctx, source, policy, store.Usage(c))
}

// Entry is one change in the audit. The json tags are its form in the admin API.
type Entry struct {
	ID     int64           `json:"id"` // rises, with gaps
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"` // set, stop, resume; key-create, key-revoke; entities-enable, entities-disable, entities-pin, entities-unpin, snapshot-delete; replay- and purge-started, -stopped, -resumed, -ended
	Source string          `json:"source"` // empty for a key
	Before json.RawMessage `json:"before"` // limiter.Override, access.Key, or which entities or letters were meant
	After  json.RawMessage `json:"after"`
	Note   string          `json:"note"`
}

// Audit returns the newest changes, the newest first, limit of them at most.
func (s *Settings) Audit(ctx context.Context, limit int) ([]Entry, error) {
	kept, err := s.store.Audit(ctx, limit)
	if err != nil {
		return nil, err
	}
	all := make([]Entry, len(kept))
	for i, e := range kept {
		all[i] = Entry(e)
	}
	return all, nil
}
