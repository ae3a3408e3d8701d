package announced

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

func TestCompile_RejectsInvalidRule(t *testing.T) {
	for _, c := range []struct {
		rule    Rule
		message string
	}{
		{Rule{}, "[1].policy: is missing"},
		{Rule{Policy: "p"}, "[1].remaining: the rule reads nothing"},
		{Rule{Policy: "p", Resource: "X-Bucket"}, "[1].remaining: the rule reads nothing"},
		{Rule{Policy: "p", Limit: "X Limit"}, `[1].limit: "X Limit" is not a valid header name; write a path in the body as body:a.b`},
		{Rule{Policy: "p", Remaining: "X:Left"}, "[1].remaining: "},
		{Rule{Policy: "p", Used: "é", Limit: "X"}, "[1].used: "},
		{Rule{Policy: "p", Usage: "body:"}, "[1].usage: body: needs a path"},
		{Rule{Policy: "p", Reset: "body:@valid"}, "[1].reset: "},
		{Rule{Policy: "p", Resource: "body:a|@pretty"}, "[1].resource: "},
		{Rule{Policy: "p", Cost: "body:{@this}"}, "[1].cost: "},
		{Rule{Policy: "p", Field: " "}, "[1].field: "},
		{Rule{Policy: "p", Field: "X", PolicyField: "\n"}, "[1].policyField: "},
		{Rule{Policy: "p", List: "[]", Window: time.Second}, "[1].list: "},
		{Rule{Policy: "p", List: "X", Counts: "[]", Window: time.Second}, "[1].counts: "},
		{Rule{Policy: "p", Used: "X"}, "[1].used: needs `limit`"},
		{Rule{Policy: "p", Limit: "X", PolicyField: "Y"}, "[1].policyField: set `field` too"},
		{Rule{Policy: "p", Limit: "X", Item: "daily"}, "[1].item: set `field` too"},
		{Rule{Policy: "p", Limit: "X", Counts: "Y"}, "[1].counts: set `list` too"},
		{Rule{Policy: "p", Limit: "X", Window: time.Second}, "[1].window: set `list` too"},
		{Rule{Policy: "p", List: "X"}, "[1].window: 0s must be a whole number of seconds"},
		{Rule{Policy: "p", List: "X", Window: -time.Second}, "[1].window: "},
		{Rule{Policy: "p", List: "X", Window: 1500 * time.Millisecond}, "[1].window: "},
	} {
		_, err := Compile([]Rule{github, c.rule})
		if err == nil || !strings.HasPrefix(err.Error(), c.message) {
			t.Errorf("%+v: got error %v, want %s…", c.rule, err, c.message)
		}
	}
	if _, err := Compile([]Rule{{Policy: "p", Cost: `body:\@cost.actual`}}); err != nil {
		t.Errorf("member whose name begins with @: got error %v", err)
	}
	if r := compile(t); r.ReadsBody() || r.Read(header("X", "1"), nil, waitNow) != nil {
		t.Error("no rules: got a notice")
	}
}

func TestRule_UnmarshalYAML(t *testing.T) {
	text := `
- policy: app
  list: X-App-Rate-Limit
  counts: X-App-Rate-Limit-Count
  window: 2m0s
- policy: daily
  resource: X-Bucket
  field: RateLimit
  policyField: RateLimit-Policy
  item: daily
- policy: points
  limit: X-Limit
  remaining: X-Remaining
  used: X-Used
  usage: X-Usage
  reset: body:reset
  cost: body:cost
`
	want := []Rule{
		{Policy: "app", List: "X-App-Rate-Limit", Counts: "X-App-Rate-Limit-Count", Window: 2 * time.Minute},
		{Policy: "daily", Resource: "X-Bucket", Field: "RateLimit", PolicyField: "RateLimit-Policy", Item: "daily"},
		{
			Policy: "points", Limit: "X-Limit", Remaining: "X-Remaining", Used: "X-Used", Usage: "X-Usage",
			Reset: "body:reset", Cost: "body:cost",
		},
	}
	var got []Rule
	if err := yaml.UnmarshalWithOptions([]byte(text), &got, yaml.Strict()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, error %v", got, err)
	}
	compile(t, got...)
	written, err := yaml.Marshal(want)
	if again := []Rule(nil); err != nil || yaml.Unmarshal(written, &again) != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("got error %v for\n%s", err, written)
	}
	if strings.Contains(string(written), `""`) {
		t.Errorf("empty fields are written:\n%s", written)
	}
	if yaml.UnmarshalWithOptions([]byte("- policy: p\n  remains: X"), &got, yaml.Strict()) == nil {
		t.Error("an unknown field was accepted")
	}
}
