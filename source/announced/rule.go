package announced

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Rule lists the locations in which responses report one policy. A location is the name of a
// header, or "body:" and the gjson path of a number or string in a JSON body. Several fields can
// report the same quantity: for example, Remaining and Usage report the remaining calls. Then the
// first of these fields counts, in the order below. A quantity without a location is unknown.
type Rule struct {
	// Policy is the name of the quota policy that the responses report.
	Policy string `yaml:"policy"`
	// Limit is the location of the number of calls or units that the window allows.
	Limit string `yaml:"limit,omitempty"`
	// Remaining is the location of the remaining calls or units.
	Remaining string `yaml:"remaining,omitempty"`
	// Used is the location of the used calls or units. It requires the setting `limit`. It is read
	// only if the response has no remaining value.
	Used string `yaml:"used,omitempty"`
	// Usage is the location of a pair used/limit, such as 32/40.
	Usage string `yaml:"usage,omitempty"`
	// Reset is the location of the end of the window. The value at this location can be an epoch in
	// seconds or milliseconds, seconds from now, a duration such as 6m0s, or an ISO 8601 or HTTP
	// date.
	Reset string `yaml:"reset,omitempty"`
	// Resource is the location of the name of the upstream's budget that the call was charged to,
	// for example "core" of GitHub.
	Resource string `yaml:"resource,omitempty"`
	// Cost is the location of the number of units that this call cost.
	Cost string `yaml:"cost,omitempty"`

	// Field is the location of a structured field of the IETF draft, such as "daily";r=50;t=30.
	Field string `yaml:"field,omitempty"`
	// PolicyField is the location of the structured field with the limits of the policies in Field, such
	// as "daily";q=1000;w=86400.
	PolicyField string `yaml:"policyField,omitempty"`
	// Item is the name of the list item to read in the structured field, such as daily; empty means
	// the item with the lowest remaining number.
	Item string `yaml:"item,omitempty"`

	// List is the location of a list of limits, such as 20:1,100:120 (limit:seconds).
	List string `yaml:"list,omitempty"`
	// Counts is the location of the list of used calls for the windows in List, such as 3:1,40:120
	// (used:seconds).
	Counts string `yaml:"counts,omitempty"`
	// Window selects one entry of List and of Counts; 120s selects 100:120 and 40:120.
	Window time.Duration `yaml:"window,omitempty"`
}

// String returns the rule as it is written in the configuration, for example
// {policy: minute, remaining: X-RateLimit-Remaining}. Names with special characters are quoted.
func (r Rule) String() string {
	var fields []string
	for _, f := range []struct{ name, value string }{
		{"policy", r.Policy},
		{"limit", r.Limit},
		{"remaining", r.Remaining},
		{"used", r.Used},
		{"usage", r.Usage},
		{"reset", r.Reset},
		{"resource", r.Resource},
		{"cost", r.Cost},
		{"field", r.Field},
		{"policyField", r.PolicyField},
		{"item", r.Item},
		{"list", r.List},
		{"counts", r.Counts},
	} {
		switch {
		case f.value == "":
			continue
		case !plainName.MatchString(f.value):
			f.value = strconv.Quote(f.value)
		}
		fields = append(fields, f.name+": "+f.value)
	}
	if r.Window > 0 {
		fields = append(fields, fmt.Sprintf("window: %ds", int(r.Window.Seconds())))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// plainName matches text that needs no quotes in YAML.
var plainName = regexp.MustCompile(`^[A-Za-z][0-9A-Za-z_-]*$`)

// Rules are compiled rules. The zero value reads nothing.
type Rules struct {
	rules     []compiledRule
	readsBody bool
}

// compiledRule is a Rule with parsed locations.
type compiledRule struct {
	Rule
	limit, remaining, used, usage, reset, resource, cost, field, policyField, list, counts location
}

// location is a canonical header name or a gjson path in the body. The zero value means that the
// rule has no such location.
type location struct{ header, path string }

// Compile validates and compiles rules. Its error begins with the index of the rule and the
// field, as in "[2].reset: …".
func Compile(rules []Rule) (Rules, error) {
	compiled := Rules{rules: make([]compiledRule, len(rules))}
	for i, rule := range rules {
		r := &compiled.rules[i]
		r.Rule = rule
		for _, p := range []struct {
			name, text string
			to         *location
		}{
			{"limit", rule.Limit, &r.limit},
			{"remaining", rule.Remaining, &r.remaining},
			{"used", rule.Used, &r.used},
			{"usage", rule.Usage, &r.usage},
			{"reset", rule.Reset, &r.reset},
			{"resource", rule.Resource, &r.resource},
			{"cost", rule.Cost, &r.cost},
			{"field", rule.Field, &r.field},
			{"policyField", rule.PolicyField, &r.policyField},
			{"list", rule.List, &r.list},
			{"counts", rule.Counts, &r.counts},
		} {
			var err error
			if *p.to, err = parsePlace(p.text); err != nil {
				return Rules{}, fmt.Errorf("[%d].%s: %w", i, p.name, err)
			}
			compiled.readsBody = compiled.readsBody || p.to.path != ""
		}
		if err := rule.check(); err != nil {
			return Rules{}, fmt.Errorf("[%d].%w", i, err)
		}
	}
	return compiled, nil
}

// check validates a rule whose locations are valid.
func (r Rule) check() error {
	switch {
	case r.Policy == "":
		return errors.New("policy: is missing; write the name of a quota policy")
	case r.Limit+r.Remaining+r.Usage+r.Reset+r.Cost+r.Field+r.List == "" && r.Used == "":
		return errors.New("remaining: the rule reads nothing; write the location of remaining, used, usage, reset, limit, cost, field or list")
	case r.Used != "" && r.Limit == "":
		return errors.New("used: needs `limit`, because the remaining calls are limit minus used; if the upstream reports no limit, remove `used`")
	case r.Field == "" && r.PolicyField != "":
		return errors.New("policyField: set `field` too, to the name of the header with the remaining quota")
	case r.Field == "" && r.Item != "":
		return errors.New("item: set `field` too, to the name of the header that contains the item")
	case r.List == "" && r.Counts != "":
		return errors.New("counts: set `list` too, to the name of the header with the limits")
	case r.List == "" && r.Window != 0:
		return errors.New("window: set `list` too, to the name of the header with one limit for each window")
	case r.List != "" && (r.Window <= 0 || r.Window%time.Second != 0):
		return fmt.Errorf("window: %v must be a whole number of seconds, for example 120s for the list entry 100:120", r.Window)
	}
	return nil
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// bodyPrefix is the prefix of a location in the body.
const bodyPrefix = "body:"

func parsePlace(text string) (location, error) {
	path, body := strings.CutPrefix(text, bodyPrefix)
	switch {
	case text == "":
		return location{}, nil
	case body && path == "":
		return location{}, errors.New("body: needs a path, as in body:extensions.cost.actualQueryCost")
	case body && CheckPath(path) != nil:
		return location{}, CheckPath(path)
	case body:
		return location{path: path}, nil
	case !headerName.MatchString(text):
		return location{}, fmt.Errorf("%q is not a valid header name; write a path in the body as body:a.b", text)
	}
	return location{header: http.CanonicalHeaderKey(text)}, nil
}

var modifier = regexp.MustCompile(`(^|[^\\])@`)

// CheckPath returns an error if a gjson path contains a modifier. Some modifiers recurse
// without a bound, so a hostile body could exhaust the stack.
func CheckPath(path string) error {
	if modifier.MatchString(path) {
		return fmt.Errorf("%q has a modifier (@…), which is not allowed here; write an @ in a member's name as \\@", path)
	}
	return nil
}

// ReadsBody reports whether any rule reads the body.
func (r Rules) ReadsBody() bool { return r.readsBody }
