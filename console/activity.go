package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
)

// The audit page first shows the newest auditPageSize entries. Each click on "Older entries" adds
// auditPageSize entries, up to maxAuditEntries.
const auditPageSize, maxAuditEntries = 200, 2000

// activityPage is the data of the audit page.
type activityPage struct {
	Entries []auditRow
	More    bool
	Limit   int
	Next    int // value of Limit after the next click on "Older entries"; 0: no more entries can be shown
}

// auditRow is an audit entry for display.
type auditRow struct {
	At                             time.Time
	Actor, Did, Source, Note, Full string
}

var actionLabels = map[string]string{ //nolint:gosec // labels of actions, not credentials
	"set": "changed the settings", "stop": "stopped the source", "resume": "resumed the source",
	"key-create": "created an API key", "key-revoke": "revoked an API key",
	"refresh": "requested refreshes", "fault-scenario": "changed the fault scenario",
	"entities-register": "registered entities", "entities-enable": "enabled entities", "entities-disable": "disabled entities", "snapshot-delete": "deleted a snapshot",
	"entities-pin": "pinned entities to a tier", "entities-unpin": "unpinned entities",
	"replay-started": "started a replay", "replay-stopped": "stopped a replay", "replay-resumed": "resumed a replay", "replay-ended": "finished a replay",
	"snapshot-import": "imported documents", "run-cancel": "cancelled a run", "run-retry": "retried a run",
	"credits-grant": "granted credits", "credits-void": "voided a grant of credits", "maintenance-run": "requested the maintenance",
	"credential-renew": "renewed a credential", "credential-authorize": "authorized a credential", "credential-revoke": "revoked a credential",
	"credential-rotate-keys": "encrypted all tokens with another key",
	"purge-started":          "started a purge", "purge-stopped": "stopped a purge", "purge-resumed": "resumed a purge", "purge-ended": "finished a purge",
}

func auditRowOf(e settings.Entry) auditRow {
	did, known := actionLabels[e.Action]
	if !known {
		did = displayText(e.Action, 40)
	}
	if changes := changedSettings(e); changes != "" {
		did += ": " + displayText(changes, maxErrorShown)
	}
	full := ""
	if text := compactJSON(e.Before); text != "" {
		full = "before " + text + "\n"
	}
	return auditRow{e.At, displayText(e.Actor, 80), did, displayText(e.Source, 63), displayText(e.Note, maxErrorShown), displayText(full+"after "+compactJSON(e.After), maxLongShown)}
}

// changedSettings lists the settings that an entry with the action "set" has changed. For other entries,
// and if the entry can't be parsed, it returns "".
func changedSettings(e settings.Entry) string {
	before, after := map[string]string{}, map[string]string{}
	if e.Action != "set" || addSettings(before, "", e.Before) != nil || addSettings(after, "", e.After) != nil {
		return ""
	}
	value := func(of map[string]string, name string) string {
		if text, changed := of[name]; changed {
			return text
		}
		return "the configured value"
	}
	names := maps.Clone(before)
	maps.Copy(names, after)
	var changes []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if from, to := value(before, name), value(after, name); from != to {
			changes = append(changes, strings.TrimPrefix(name, "policies.")+" from "+from+" to "+to)
		}
	}
	return strings.Join(changes, ", ")
}

// addSettings adds the settings in a JSON object to `all`, by their path, such as policies.second.target.
func addSettings(all map[string]string, path string, text json.RawMessage) error {
	var members map[string]json.RawMessage
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	for name, member := range members {
		if path != "" {
			name = path + "." + name
		}
		if member[0] != '{' {
			all[name] = string(member)
			continue
		}
		if err := addSettings(all, name, member); err != nil {
			return err
		}
	}
	return nil
}

// compactJSON returns JSON as text. It returns "" for a missing value, null and an empty object.
func compactJSON(text json.RawMessage) string {
	switch s := strings.TrimSpace(string(text)); s {
	case "", "null", "{}":
		return ""
	default:
		return s
	}
}

// canSeeEntry reports whether the client may see an audit entry. The client must be allowed to see
// every entity that the entry names.
func (c *settingsPages) canSeeEntry(client access.Client, e settings.Entry) bool {
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
		return key != "" && !c.Entities.Sees(client, schemas.Entity{Source: e.Source, Key: key}, "")
	})
}

func (c *settingsPages) activity(w http.ResponseWriter, r *http.Request, client access.Client) {
	ctx, cancel := requestContext(r)
	defer cancel()
	limit := auditPageSize
	if n, err := strconv.Atoi(r.FormValue("limit")); err == nil {
		limit = min(max(n, auditPageSize), maxAuditEntries)
	}
	all, err := c.Limits.Audit(ctx, limit)
	if err != nil {
		c.unavailable(w, r, "The audit can't be read.", err)
		return
	}
	p := activityPage{More: len(all) == limit, Limit: limit}
	if p.More && limit < maxAuditEntries {
		p.Next = min(limit+auditPageSize, maxAuditEntries)
	}
	for _, e := range all {
		if c.canSeeEntry(client, e) {
			p.Entries = append(p.Entries, auditRowOf(e))
		}
	}
	c.render(w, r, http.StatusOK, "activity", "Activity", p)
}
