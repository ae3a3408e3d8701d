package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
)

// audited is how many acts are shown at first and by each further step, and auditedMost how
// many at most.
const audited, auditedMost = 200, 2000

// activityPage is the page of who did what.
type activityPage struct {
	Entries []act
	More    bool
	Most    int
	Next    int // how many are shown by the next step; 0: there is none
}

// act is one entry of the audit in words.
type act struct {
	At                             time.Time
	Actor, Did, Source, Note, Full string
}

var acts = map[string]string{
	"set": "changed the settings", "stop": "stopped the source", "resume": "resumed the source",
	"key-create": "made an API key", "key-revoke": "revoked an API key",
	"refresh": "requested refreshes", "fault-scenario": "changed the fault scenario", "log-level": "changed the log level",
	"entities-register": "registered entities", "entities-enable": "put entities into the schedule", "entities-disable": "took entities out of the schedule", "snapshot-delete": "deleted a snapshot",
	"entities-pin": "pinned entities to a tier", "entities-unpin": "unpinned entities",
	"replay-started": "ordered a replay", "replay-stopped": "stopped a replay", "replay-resumed": "resumed a replay", "replay-ended": "had a replay done",
	"purge-started": "ordered a purge", "purge-stopped": "stopped a purge", "purge-resumed": "resumed a purge", "purge-ended": "had a purge done",
}

func actOf(e settings.Entry) act {
	did, known := acts[e.Action]
	if !known {
		did = shown(e.Action, 40)
	}
	full := ""
	if text := compact(e.Before); text != "" {
		full = "before " + text + "\n"
	}
	return act{e.At, shown(e.Actor, 80), did, shown(e.Source, 63), shown(e.Note, errorShown), shown(full+"after "+compact(e.After), longShown)}
}

// compact is JSON on one line; empty if it says nothing.
func compact(text json.RawMessage) string {
	switch s := strings.TrimSpace(string(text)); s {
	case "", "null", "{}":
		return ""
	default:
		return s
	}
}

// seesEntry reports whether the client may see an entry of the audit: none of the keys that it
// names may be of an entity that the client may not see.
func (c *Console) seesEntry(who access.Client, e settings.Entry) bool {
	var named struct {
		Key    string   `json:"key"`
		Keys   []string `json:"keys"`
		Filter struct {
			Key string `json:"key"`
		} `json:"filter"`
	}
	if json.Unmarshal(e.After, &named) != nil {
		return true
	}
	return !slices.ContainsFunc(append(named.Keys, named.Key, named.Filter.Key), func(key string) bool {
		return key != "" && !c.Known.Sees(who, schemas.Entity{Source: e.Source, Key: key}, "")
	})
}

func (c *Console) activity(w http.ResponseWriter, r *http.Request, who access.Client) {
	ctx, cancel := bounded(r)
	defer cancel()
	most := audited
	if n, err := strconv.Atoi(r.FormValue("most")); err == nil {
		most = min(max(n, audited), auditedMost)
	}
	all, err := c.Limits.Audit(ctx, most)
	if err != nil {
		c.trouble(w, r, "The audit can't be read.", err)
		return
	}
	p := activityPage{More: len(all) == most, Most: most}
	if p.More && most < auditedMost {
		p.Next = min(most+audited, auditedMost)
	}
	for _, e := range all {
		if c.seesEntry(who, e) {
			p.Entries = append(p.Entries, actOf(e))
		}
	}
	c.render(w, r, http.StatusOK, "activity", "Activity", p)
}
