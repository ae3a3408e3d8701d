package settings

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

// State holds the settings of one source: the configured values, the override, and the effective
// values. The json tags define its form in the admin API.
type State struct {
	Source     string     `json:"source"`
	Stopped    bool       `json:"stopped"`
	Revision   int64      `json:"revision"`  // increases with each change; 0: the settings were never changed
	ChangedAt  *time.Time `json:"changedAt"` // time of the last change; nil at revision 0, like ChangedBy
	ChangedBy  *string    `json:"changedBy"`
	Configured Values     `json:"configured"`
	Override   Override   `json:"override"`
	// Effective is Configured with Override applied. It is nil, and Problem says why, if the
	// override is invalid under the current configuration.
	Effective *Values `json:"effective"`
	Problem   string  `json:"problem,omitempty"`
}

// Override holds the changed settings of one source: of its quota and of its prefetching.
type Override struct {
	limiter.Override
	Prefetch *PrefetchOverride `json:"prefetch,omitempty"` // changed prefetch settings; nil: the configured values apply
}

// prefetchOverride returns o.Prefetch, or an empty override if it is nil.
func (o Override) prefetchOverride() PrefetchOverride {
	if o.Prefetch == nil {
		return PrefetchOverride{}
	}
	return *o.Prefetch
}

// Values holds the settings of a source that can change at run time. It also shows the Window and
// the TimeZone of each policy, which only the configuration file can change.
type Values struct {
	Policies []Policy `json:"policies"`
	Prefetch Prefetch `json:"prefetch"`
}

// Policy is one quota policy: a limit in calls per window.
type Policy struct {
	Name        string          `json:"name"`
	Window      string          `json:"window"` // length of the window: a duration such as 1s, or the word day
	TimeZone    string          `json:"timeZone,omitempty"`
	Limit       int             `json:"limit"`
	Target      int             `json:"target"` // maximum number of calls that freshet makes per window; 0: as many as Limit safely allows
	HighReserve limiter.Reserve `json:"highReserve"`
	LowReserve  int             `json:"lowReserve"`
}

func newValues(c limiter.Config, prefetch Prefetch) Values {
	q := Values{Prefetch: prefetch, Policies: []Policy{}}
	for _, p := range c.Policies {
		q.Policies = append(q.Policies, Policy{p.Name, p.Window.String(), p.TimeZone, p.Limit, p.Target, p.HighReserve, p.LowReserve})
	}
	return q
}

// effectiveValues applies an override to the configured settings. It returns an InvalidError
// if the result is invalid.
func effectiveValues(source Source, o Override) (Values, error) {
	changed, err := source.Quota.With(o.Override)
	if err == nil {
		_, err = limiter.NewQuota(changed)
	}
	if err != nil {
		return Values{}, &InvalidError{problem.QuotaRefused, err}
	}
	prefetch, err := source.Prefetch(o.prefetchOverride())
	if err != nil {
		return Values{}, &InvalidError{problem.PrefetchRefused, err}
	}
	return newValues(changed, prefetch), nil
}

func newState(kept store.Setting, source Source) (State, error) {
	override, err := decodeOverride(kept)
	if err != nil {
		return State{}, err
	}
	prefetch, err := source.Prefetch(PrefetchOverride{})
	if err != nil {
		return State{}, err
	}
	state := State{
		Source: kept.Source, Stopped: override.Stopped, Revision: kept.Revision, Configured: newValues(source.Quota, prefetch), Override: override,
	}
	if kept.Revision > 0 {
		state.ChangedAt, state.ChangedBy = &kept.ChangedAt, &kept.ChangedBy
	}
	if q, err := effectiveValues(source, override); err != nil {
		state.Problem = err.Error()
	} else {
		state.Effective = &q
	}
	return state, nil
}

func decodeOverride(kept store.Setting) (o Override, err error) {
	if kept.Value == nil {
		return o, nil
	}
	if err := json.Unmarshal(kept.Value, &o); err != nil {
		return o, fmt.Errorf("decode the stored settings of %s: %w; correct or delete the row in the table settings", kept.Source, err)
	}
	return o, nil
}

// Quota returns the stored override of a source's quota and its revision. It implements
// limiter.Settings.
func (s *Settings) Quota(ctx context.Context, source string) (limiter.Override, int64, error) {
	kept, err := s.store.Setting(ctx, source)
	if err != nil {
		return limiter.Override{}, 0, err
	}
	o, err := decodeOverride(kept)
	return o.Override, kept.Revision, err
}

// Prefetch returns the stored override of a source's prefetch settings.
func (s *Settings) Prefetch(ctx context.Context, source string) (PrefetchOverride, error) {
	kept, err := s.store.Setting(ctx, source)
	if err != nil {
		return PrefetchOverride{}, err
	}
	o, err := decodeOverride(kept)
	return o.prefetchOverride(), err
}

// Entry is one entry of the audit log. The json tags define its form in the admin API.
type Entry struct {
	ID     int64           `json:"id"` // number that increases with each entry; there may be gaps
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"` // one of the actions that the OpenAPI document lists (AuditEntry)
	Source string          `json:"source"` // source of the action; empty for actions on API keys
	Before json.RawMessage `json:"before"` // value before the change: an Override, an access.Key, or the filter that selected entities or dead letters
	After  json.RawMessage `json:"after"`
	Note   string          `json:"note"`
}

// Audit returns the newest audit entries, newest first, at most `limit`.
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
