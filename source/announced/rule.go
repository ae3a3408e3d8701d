package announced

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// Rule says where answers tell of one policy. Each place is the name of a header, or
// body: and a gjson path to a number or text in a JSON body. What several places tell
// the first of them decides, in the order of the fields here; what none tells is
// unknown.
type Rule struct {
	// Policy is the policy's name in the quota.
	Policy string `yaml:"policy"`
	// Limit, Remaining and Used are numbers of the window. Used counts where nothing says
	// what remains.
	Limit     string `yaml:"limit,omitempty"`
	Remaining string `yaml:"remaining,omitempty"`
	Used      string `yaml:"used,omitempty"`
	// Usage is a pair used/limit, such as 32/40.
	Usage string `yaml:"usage,omitempty"`
	// Reset is when the window ends: an epoch in seconds or milliseconds, seconds from
	// now, a duration such as 6m0s, or a date by ISO 8601 or HTTP.
	Reset string `yaml:"reset,omitempty"`
	// Resource is the name of the budget that the call was charged to.
	Resource string `yaml:"resource,omitempty"`
	// Cost is what this call was charged.
	Cost string `yaml:"cost,omitempty"`

	// Field is a structured field of the IETF draft, such as "daily";r=50;t=30, and
	// PolicyField the one beside it, such as "daily";q=1000;w=86400. Item is which one of
	// the list; empty: the one with the fewest remaining.
	Field       string `yaml:"field,omitempty"`
	PolicyField string `yaml:"policyField,omitempty"`
	Item        string `yaml:"item,omitempty"`

	// List is a list of limits limit:seconds,… and Counts one of what is used of them,
	// used:seconds,…; Window says which entry of both it is.
	List   string        `yaml:"list,omitempty"`
	Counts string        `yaml:"counts,omitempty"`
	Window time.Duration `yaml:"window,omitempty"`
}

// Rules are compiled ones. The zero Rules read nothing.
type Rules struct {
	rules     []compiledRule
	needsBody bool
}

// compiledRule is a Rule ready for use.
type compiledRule struct {
	Rule
	limit, remaining, used, usage, reset, resource, cost, field, policyField, list, counts location
}

// location is where a value stands: in a header, by its canonical name, or at a path of the
// body; with neither, nowhere.
type location struct{ header, path string }

// Compile checks the rules and returns them ready for use. Its error begins with the
// rule's index and the field, as [2].reset: …
func Compile(rules []Rule) (Rules, error) {
	compiled := Rules{rules: make([]compiledRule, len(rules))}
	for i, one := range rules {
		r := &compiled.rules[i]
		r.Rule = one
		for _, p := range []struct {
			name, text string
			to         *location
		}{
			{"limit", one.Limit, &r.limit},
			{"remaining", one.Remaining, &r.remaining},
			{"used", one.Used, &r.used},
			{"usage", one.Usage, &r.usage},
			{"reset", one.Reset, &r.reset},
			{"resource", one.Resource, &r.resource},
			{"cost", one.Cost, &r.cost},
			{"field", one.Field, &r.field},
			{"policyField", one.PolicyField, &r.policyField},
			{"list", one.List, &r.list},
			{"counts", one.Counts, &r.counts},
		} {
			var err error
			if *p.to, err = parsePlace(p.text); err != nil {
				return Rules{}, fmt.Errorf("[%d].%s: %w", i, p.name, err)
			}
			compiled.needsBody = compiled.needsBody || p.to.path != ""
		}
		if err := one.check(); err != nil {
			return Rules{}, fmt.Errorf("[%d].%w", i, err)
		}
	}
	return compiled, nil
}

// check returns what is wrong with a rule whose places are right.
func (r Rule) check() error {
	switch {
	case r.Policy == "":
		return errors.New("policy: is missing; write the name of one of the quota's policies")
	case r.Limit+r.Remaining+r.Usage+r.Reset+r.Cost+r.Field+r.List == "" && r.Used == "":
		return errors.New("remaining: the rule reads nothing; say where remaining, used, usage, reset, limit, cost, a field or a list stands")
	case r.Used != "" && r.Limit == "":
		return errors.New("used: needs limit, for what remains is the difference; where nothing tells the limit, leave used out")
	case r.Field == "" && r.PolicyField != "":
		return errors.New("policyField: needs field, the header that it stands beside")
	case r.Field == "" && r.Item != "":
		return errors.New("item: needs field, the header whose item it is")
	case r.List == "" && r.Counts != "":
		return errors.New("counts: needs list, the header with the limits")
	case r.List == "" && r.Window != 0:
		return errors.New("window: needs list, the header whose entry it names")
	case r.List != "" && (r.Window <= 0 || r.Window%time.Second != 0):
		return fmt.Errorf("window: %v must be a whole number of seconds, as the list's entry has it: 120s for 100:120", r.Window)
	}
	return nil
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// bodyPrefix begins a place in the body.
const bodyPrefix = "body:"

func parsePlace(text string) (location, error) {
	path, body := strings.CutPrefix(text, bodyPrefix)
	switch {
	case text == "":
		return location{}, nil
	case body && path == "":
		return location{}, errors.New("body: needs a path behind it, such as body:extensions.cost.actualQueryCost")
	case body && CheckPath(path) != nil:
		return location{}, CheckPath(path)
	case body:
		return location{path: path}, nil
	case !headerName.MatchString(text):
		return location{}, fmt.Errorf("%q can't be the name of a header; a path in the body is written body:a.b", text)
	}
	return location{header: http.CanonicalHeaderKey(text)}, nil
}

var modifier = regexp.MustCompile(`(^|[^\\])@`)

// CheckPath returns nil if a gjson path may be looked up in what an upstream sends: it must
// have no modifiers, some of which walk a body of any depth, so that one could exhaust the
// stack.
func CheckPath(path string) error {
	if modifier.MatchString(path) {
		return fmt.Errorf("%q has a modifier (@…), which is not allowed here; name a member, and write an @ in its name as \\@", path)
	}
	return nil
}

// NeedsBody reports whether any rule reads the body.
func (r Rules) NeedsBody() bool { return r.needsBody }
