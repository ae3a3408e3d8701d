package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// court is the rule for a source of court cases. It selects open cases with the param encCsNo,
// which only linked cases have.
var court = Active{
	Status: Status{Path: "general.status", Allow: []string{"진행중", "진행", "active"}, Block: []string{"종결", "확정"}},
	Unless: []string{"general.result", `general.result\.date`},
	Params: []string{"encCsNo"},
}

func stored(c prefetched.Candidate, json string) prefetched.Candidate {
	c.State.Encoding, c.Payload = store.Zstd, store.Encode([]byte(json)).Bytes
	return c
}

func TestActive_SelectsEntities(t *testing.T) {
	now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
	linked := candidate(1, prefetched.Hot)
	linked.Params = map[string]string{"encCsNo": "x"}
	for name, c := range map[string]struct {
		rule Active
		of   prefetched.Candidate
		want bool
	}{
		"nothing is stored yet":          {court, linked, true},
		"open":                           {court, stored(linked, `{"general":{"status":"진행중"}}`), true},
		"closed":                         {court, stored(linked, `{"general":{"status":"종결"}}`), false},
		"neither":                        {court, stored(linked, `{"general":{"status":"보류"}}`), false},
		"neither, without an allow list": {Active{Status: Status{Path: "general.status", Block: []string{"종결"}}}, stored(linked, `{"general":{"status":"보류"}}`), true},
		"no status":                      {court, stored(linked, `{"general":{"status":null}}`), true},
		"a final result":                 {court, stored(linked, `{"general":{"status":"진행","result":"원고승"}}`), false},
		"an empty final result":          {court, stored(linked, `{"general":{"status":"진행","result":"","x":[]}}`), true},
		"a name with a dot":              {court, stored(linked, `{"general":{"status":"진행","result.date":"2026"}}`), false},
		"not linked":                     {court, stored(candidate(1, prefetched.Hot), `{"general":{"status":"진행"}}`), false},
		"unreadable content":             {court, prefetched.Candidate{RegisteredEntity: linked.RegisteredEntity, Payload: []byte("?")}, true},
		"no rule":                        {Active{}, stored(candidate(1, prefetched.Hot), `{"general":{"status":"종결"}}`), true},
	} {
		p := newPolicy(t, Tiers, func(k *Config) { k.Active = c.rule })
		m := p.Next(c.of, now)
		if m.Enqueue != c.want {
			t.Errorf("%s: enqueue: got %v", name, m.Enqueue)
		}
		if wait := m.Due.Sub(now); !m.Enqueue && (wait < 8*time.Hour || wait > 36*time.Hour) {
			t.Errorf("%s: next due time: got %v later", name, wait)
		}
	}
}

func TestPolicy_ChecksNotFoundRarely(t *testing.T) {
	now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
	p := newPolicy(t, Tiers, nil)
	gone := stored(candidate(1, prefetched.Hot), `{}`)
	gone.State.NotFound = true
	never := candidate(1, prefetched.Hot)
	never.State.NotFound = true
	for name, c := range map[string]struct {
		of   prefetched.Candidate
		want time.Duration
	}{"gone": {gone, 24 * time.Hour}, "never there": {never, 7 * 24 * time.Hour}} {
		m := p.Next(c.of, now)
		if wait := m.Due.Sub(now); !m.Enqueue || wait < c.want/3 || wait > 3*c.want/2 {
			t.Errorf("%s: got enqueue %v, due after %v, want about %v", name, m.Enqueue, wait, c.want)
		}
	}
}

func TestActive_RejectsEmptyRule(t *testing.T) {
	for want, rule := range map[string]Active{
		"needs `path`":                {Status: Status{Allow: []string{"x"}}},
		"value in `allow` or `block`": {Status: Status{Path: "a.b"}},
		"allowed and bloc":            {Status: Status{Path: "a.b", Allow: []string{"x"}, Block: []string{"x"}}},
		"document.member":             {Unless: []string{"result"}},
		"empty name":                  {Params: []string{""}},
	} {
		c := DefaultConfig()
		c.Active = rule
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", rule, err, want)
		}
	}
}
