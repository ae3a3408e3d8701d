package announced

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	sec = time.Second
	ms  = time.Millisecond
)

func compile(tb testing.TB, rules ...Rule) Rules {
	tb.Helper()
	r, err := Compile(rules)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// readText reads a response written as lines of headers, an empty line and the body.
func readText(r Rules, text string) []Notice {
	head, body, _ := strings.Cut(strings.TrimSpace(text), "\n\n")
	h := header()
	for line := range strings.SplitSeq(head, "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			h.Add(name, value)
		}
	}
	return r.Read(h, func() []byte { return []byte(body) }, waitNow)
}

// The rules of some known upstreams.
var (
	github = Rule{
		Policy: "hour", Limit: "x-ratelimit-limit", Remaining: "x-ratelimit-remaining", Used: "x-ratelimit-used",
		Reset: "x-ratelimit-reset", Resource: "x-ratelimit-resource",
	}
	graphql = Rule{
		Policy: "points", Limit: "body:data.rateLimit.limit", Remaining: "body:data.rateLimit.remaining",
		Reset: "body:data.rateLimit.resetAt", Cost: "body:data.rateLimit.cost",
	}
	riot    = Rule{Policy: "app", List: "X-App-Rate-Limit", Counts: "X-App-Rate-Limit-Count", Window: 120 * sec}
	discord = Rule{
		Policy: "bucket", Limit: "X-RateLimit-Limit", Remaining: "X-RateLimit-Remaining", Reset: "X-RateLimit-Reset-After",
		Resource: "X-RateLimit-Bucket",
	}
	reddit   = Rule{Policy: "ten-minutes", Remaining: "X-Ratelimit-Remaining", Reset: "X-Ratelimit-Reset"}
	shopify  = Rule{Policy: "bucket", Usage: "X-Shopify-Shop-Api-Call-Limit"}
	shopifyQ = Rule{
		Policy: "points", Limit: "body:extensions.cost.throttleStatus.maximumAvailable",
		Remaining: "body:extensions.cost.throttleStatus.currentlyAvailable", Cost: "body:extensions.cost.actualQueryCost",
	}
	openAI = []Rule{
		{Policy: "requests", Limit: "x-ratelimit-limit-requests", Remaining: "x-ratelimit-remaining-requests", Reset: "x-ratelimit-reset-requests"},
		{Policy: "tokens", Limit: "x-ratelimit-limit-tokens", Remaining: "x-ratelimit-remaining-tokens", Reset: "x-ratelimit-reset-tokens"},
	}
	jira = []Rule{
		{Policy: "points", Field: "Beta-Ratelimit", PolicyField: "Beta-Ratelimit-Policy", Item: "tenant-app-quota"},
		{Policy: "burst", Limit: "X-Ratelimit-Limit", Remaining: "X-Ratelimit-Remaining"},
	}
	hubspot = []Rule{
		{Policy: "ten-seconds", Limit: "X-HubSpot-RateLimit-Max", Remaining: "X-HubSpot-RateLimit-Remaining"},
		{Policy: "day", Limit: "X-HubSpot-RateLimit-Daily", Remaining: "X-HubSpot-RateLimit-Daily-Remaining"},
	}
	ietf = Rule{Policy: "any", Field: "RateLimit", PolicyField: "RateLimit-Policy"}
)

func TestRead_KnownUpstreams(t *testing.T) {
	for name, c := range map[string]struct {
		rules []Rule
		text  string
		want  []Notice
	}{
		"GitHub": {[]Rule{github}, `
x-ratelimit-limit: 5000
x-ratelimit-remaining: 4711
x-ratelimit-used: 289
x-ratelimit-reset: 1800001234
x-ratelimit-resource: core`, []Notice{{"hour", "core", 5000, 4711, Unknown, 1234 * sec, sec}}},
		"GitHub, relative to Date": {[]Rule{github}, `
Date: Fri, 15 Jan 2027 08:00:10 GMT
x-ratelimit-remaining: 0
x-ratelimit-reset: 1800000070`, []Notice{{"hour", "", Unknown, 0, Unknown, 60 * sec, 2 * sec}}},
		"GitHub, only used": {[]Rule{github}, `
x-ratelimit-limit: 60
x-ratelimit-used: 61`, []Notice{{"hour", "", 60, 0, Unknown, Unknown, 0}}},
		"GraphQL of GitHub": {[]Rule{graphql}, `
Content-Type: application/json

{"data": {"rateLimit": {"limit": 5000, "cost": 51, "remaining": 4900, "resetAt": "2027-01-15T08:30:00Z"}}}`, []Notice{{"points", "", 5000, 4900, 51, 1800 * sec, sec}}},
		"Riot": {[]Rule{riot, {Policy: "app-second", List: "X-App-Rate-Limit", Counts: "X-App-Rate-Limit-Count", Window: sec}}, `
X-App-Rate-Limit: 20:1,100:120
X-App-Rate-Limit-Count: 3:1, 98:120`, []Notice{{"app", "", 100, 2, Unknown, Unknown, 0}, {"app-second", "", 20, 17, Unknown, Unknown, 0}}},
		"Riot, on two lines and one of the counts missing": {[]Rule{riot}, `
X-App-Rate-Limit: 20:1
X-App-Rate-Limit: 100:120
X-App-Rate-Limit-Count: 3:1`, []Notice{{"app", "", 100, Unknown, Unknown, Unknown, 0}}},
		"Riot, another application's windows": {[]Rule{riot}, `
X-App-Rate-Limit: 500:10,30000:600
X-App-Rate-Limit-Count: 1:10,1:600`, nil},
		"Discord": {[]Rule{discord}, `
X-RateLimit-Limit: 5
X-RateLimit-Remaining: 4
X-RateLimit-Reset: 1800000001.337
X-RateLimit-Reset-After: 1.337
X-RateLimit-Bucket: ab12cd34ef`, []Notice{{"bucket", "ab12cd34ef", 5, 4, Unknown, 1337 * ms, ms}}},
		"Discord's body": {[]Rule{{Policy: "bucket", Reset: "body:retry_after"}}, `
X-RateLimit-Scope: user

{"message": "slow", "retry_after": 64.57, "global": false}`, []Notice{{"bucket", "", Unknown, Unknown, Unknown, 64570 * ms, ms}}},
		"Reddit": {[]Rule{reddit}, `
X-Ratelimit-Used: 13
X-Ratelimit-Remaining: 986.7
X-Ratelimit-Reset: 417`, []Notice{{"ten-minutes", "", Unknown, 986, Unknown, 417 * sec, sec}}},
		"Shopify": {[]Rule{shopify}, `
X-Shopify-Shop-Api-Call-Limit: 31/40
Retry-After: 2.0`, []Notice{{"bucket", "", 40, 9, Unknown, Unknown, 0}}},
		"GraphQL of Shopify": {[]Rule{shopifyQ}, `
Content-Type: application/json

{"data": {}, "extensions": {"cost": {"requestedQueryCost": 102, "actualQueryCost": 45.5, "throttleStatus":
 {"maximumAvailable": 2000.0, "currentlyAvailable": 1953.9, "restoreRate": 100.0}}}}`, []Notice{{"points", "", 2000, 1953, 46, Unknown, 0}}},
		"OpenAI": {openAI, `
x-ratelimit-limit-requests: 70
x-ratelimit-limit-tokens: 160000
x-ratelimit-remaining-requests: 69
x-ratelimit-remaining-tokens: 159984
x-ratelimit-reset-requests: 120ms
x-ratelimit-reset-tokens: 6m0s`, []Notice{{"requests", "", 70, 69, Unknown, 120 * ms, ms}, {"tokens", "", 160000, 159984, Unknown, 6 * time.Minute, sec}}},
		"OpenAI, half missing": {openAI, `
x-ratelimit-remaining-tokens: 7`, []Notice{{"tokens", "", Unknown, 7, Unknown, Unknown, 0}}},
		"Jira": {jira, `
Beta-Ratelimit-Policy: "tenant-app-quota";q=90100;w=3600
Beta-Ratelimit: "tenant-app-quota";r=17000;t=2100
X-Ratelimit-Limit: 300
X-Ratelimit-Remaining: 299`, []Notice{{"points", "", 90100, 17000, Unknown, 2100 * sec, sec}, {"burst", "", 300, 299, Unknown, Unknown, 0}}},
		"Jira, exhausted: no policy and a late reset": {jira, `
Beta-Ratelimit: "tenant-app-quota";r=0;t=2700
X-Beta-Ratelimit-Reset: 2027-01-15T09:00Z`, []Notice{{"points", "", Unknown, 0, Unknown, 2700 * sec, sec}}},
		"Jira's reset": {[]Rule{{Policy: "points", Reset: "X-Beta-Ratelimit-Reset", Field: "Beta-Ratelimit"}}, `
Beta-Ratelimit: "tenant-app-quota";r=0;t=2700
X-Beta-Ratelimit-Reset: 2027-01-15T09:00Z`, []Notice{{"points", "", Unknown, 0, Unknown, time.Hour, sec}}},
		"HubSpot": {hubspot, `
X-HubSpot-RateLimit-Daily: 260000
X-HubSpot-RateLimit-Daily-Remaining: 259000
X-HubSpot-RateLimit-Interval-Milliseconds: 10000
X-HubSpot-RateLimit-Max: 110
X-HubSpot-RateLimit-Remaining: 109`, []Notice{{"ten-seconds", "", 110, 109, Unknown, Unknown, 0}, {"day", "", 260000, 259000, Unknown, Unknown, 0}}},
		"HubSpot by OAuth, which has no day": {hubspot, `
X-HubSpot-RateLimit-Max: 110
X-HubSpot-RateLimit-Remaining: 109`, []Notice{{"ten-seconds", "", 110, 109, Unknown, Unknown, 0}}},
		"the draft": {[]Rule{ietf}, `
RateLimit-Policy: "burst";q=120;w=60,"daily";q=1100;w=86400
RateLimit: "burst";r=50;t=30, "daily";r=40;t=7200`, []Notice{{"any", "", 1100, 40, Unknown, 7200 * sec, sec}}},
		"the draft, one item": {[]Rule{{Policy: "burst", Field: "RateLimit", PolicyField: "RateLimit-Policy", Item: "burst"}}, `
RateLimit-Policy: "burst";q=120;w=60,"daily";q=1100;w=86400
RateLimit: "burst";r=50;t=30, "daily";r=40;t=7200`, []Notice{{"burst", "", 120, 50, Unknown, 30 * sec, sec}}},
		"the draft, without a policy of that name": {[]Rule{ietf}, `
RateLimit-Policy: "peruser";q=65000;qu="content-bytes";w=10;pk=:c29tZWJvZHk=:
RateLimit: "default";r=998;pk=:dHJpYWw=:`, []Notice{{"any", "", Unknown, 998, Unknown, Unknown, 0}}},
		"Nexon, which reports nothing": {[]Rule{github, shopify, riot, ietf, graphql}, `
content-type: application/json;charset=UTF-8
date: Fri, 15 Jan 2027 08:00:00 GMT
expires: 0
x-envoy-upstream-service-time: 30

{"error":{"name":"OPENAPI00007","message":"Please try again later"}}`, nil},
		"only a cost": {[]Rule{{Policy: "points", Cost: "X-Cost"}}, "X-Cost: 0", []Notice{{"points", "", Unknown, Unknown, 0, Unknown, 0}}},
	} {
		if got := readText(compile(t, c.rules...), c.text); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
	}
}

func TestRead_ResetSpellingsAndSlack(t *testing.T) {
	r := compile(t, Rule{Policy: "p", Reset: "X-Reset"})
	for text, want := range map[string][2]time.Duration{
		"30":                             {30 * sec, sec},
		" 30 ":                           {30 * sec, sec},
		"0":                              {0, sec},
		"30.25":                          {30250 * ms, ms},
		"1800000030":                     {30 * sec, sec},
		"1800000030.123":                 {30123 * ms, ms},
		"1800000030123":                  {30123 * ms, ms},
		"1799999999":                     {0, sec},
		"6m0s":                           {6 * time.Minute, sec},
		"1h30m":                          {90 * time.Minute, time.Minute},
		"2h":                             {2 * time.Hour, time.Hour},
		"120ms":                          {120 * ms, ms},
		"7.66s":                          {7660 * ms, ms},
		"250µs":                          {250 * time.Microsecond, time.Microsecond},
		"2027-01-15T08:00:30Z":           {30 * sec, sec},
		"2027-01-15T08:00:30.5Z":         {30500 * ms, ms},
		"2027-01-15T17:00:30+09:00":      {30 * sec, sec},
		"2027-01-15T17:00:30+0900":       {30 * sec, sec},
		"2027-01-15T08:00:30":            {30 * sec, sec},
		"2027-01-15T08:01Z":              {60 * sec, sec},
		"Fri, 15 Jan 2027 08:00:30 GMT":  {30 * sec, sec},
		"Friday, 15-Jan-27 08:00:30 GMT": {30 * sec, sec},
		"2678400":                        {maxReset, sec},
	} {
		got := r.Read(header("X-Reset", text), nil, waitNow)
		if len(got) != 1 || got[0].Reset != want[0] || got[0].Slack != want[1] {
			t.Errorf("%q: got %+v, want %v", text, got, want)
		}
	}
}

func TestRead_UsesDateHeaderAsClock(t *testing.T) {
	r := compile(t, Rule{Policy: "p", Reset: "X-Reset"})
	for _, c := range []struct {
		text, date  string
		want, slack time.Duration
	}{
		{"1800000030", "Fri, 15 Jan 2027 08:00:20 GMT", 10 * sec, 2 * sec},
		{"1800000030.5", "Fri, 15 Jan 2027 08:00:20 GMT", 10500 * ms, 2 * sec},
		{"1800000030000", "Fri, 15 Jan 2027 07:00:00 GMT", 3630 * sec, 2 * sec},
		{"2027-01-15T08:00:30Z", "Fri, 15 Jan 2027 08:00:40 GMT", 0, 2 * sec},
		{"Fri, 15 Jan 2027 08:00:30 GMT", "Fri, 15 Jan 2027 08:00:20 GMT", 10 * sec, 2 * sec},
		// A number of seconds to wait does not depend on the upstream's clock.
		{"30", "Fri, 15 Jan 2027 08:00:20 GMT", 30 * sec, sec},
		{"120ms", "Fri, 15 Jan 2027 08:00:20 GMT", 120 * ms, ms},
		// An implausible Date is ignored.
		{"1800000030", "Sun, 17 Jan 2027 08:00:20 GMT", 30 * sec, sec},
		{"1800000030", "Thu, 01 Jan 1970 00:00:00 GMT", 30 * sec, sec},
		{"1800000030", "yesterday", 30 * sec, sec},
	} {
		got := r.Read(header("X-Reset", c.text, "Date", c.date), nil, waitNow)
		if len(got) != 1 || got[0].Reset != c.want || got[0].Slack != c.slack {
			t.Errorf("%s on %s: got %+v, want %v and slack %v", c.text, c.date, got, c.want, c.slack)
		}
	}
}

func TestRead_IgnoresImplausibleValues(t *testing.T) {
	nines := strings.Repeat("9", 400)
	numbers := []string{
		"", " ", "-1", "NaN", "nan", "Inf", "+Inf", "-Inf", "1e3", "0x10", "1_000", "1,000", "ten", "..", "-", "1 000", "١٢",
		"1000000000001", "9223372036854775808", nines, "0." + nines + "x", "100, 100;w=60", "\x00", "true", "null",
	}
	for _, text := range numbers {
		for _, rule := range []Rule{
			{Policy: "p", Limit: "X"},
			{Policy: "p", Remaining: "X"},
			{Policy: "p", Cost: "X"},
			{Policy: "p", Used: "X", Limit: "Y"},
			{Policy: "p", Usage: "X"},
			{Policy: "p", List: "X", Window: sec},
			{Policy: "p", Field: "X"},
		} {
			if got := compile(t, rule).Read(header("X", text), nil, waitNow); got != nil {
				t.Errorf("rule %+v with %.30q: got %+v, want nothing", rule, text, got)
			}
		}
	}
	reset := compile(t, Rule{Policy: "p", Reset: "X"})
	for _, text := range append(slices.Clip(numbers),
		"-0.5", "-6m0s", "9999h", "2678401", "99999999", "1802678401", "1802678401000", "1797321599", "100000000000000000",
		"2027-02-15T08:00:01Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2027-13-01T00:00:00Z", "tomorrow", "5 minutes", strings.Repeat("1s", maxTimeLength),
	) {
		if got := reset.Read(header("X", text), nil, waitNow); got != nil {
			t.Errorf("%.30q: got %+v", text, got)
		}
	}
	for text, want := range map[string]int64{"1000000000000": 1e12, "0": 0, "-0": 0, ".9": 0, "2.": 2, "007": 7, "0." + nines: 1} {
		n := parseCount(text, func(n float64) float64 { return float64(int64(n)) })
		if n != want {
			t.Errorf("%.30q: got %d, want %d", text, n, want)
		}
	}
}

func TestRead_PartlyInvalidList(t *testing.T) {
	for _, c := range []struct {
		rule             Rule
		text             string
		limit, remaining int64
	}{
		{shopify, "X-Shopify-Shop-Api-Call-Limit: soon/40", 40, Unknown},
		{shopify, "X-Shopify-Shop-Api-Call-Limit: -3/40", 40, Unknown},
		{shopify, "X-Shopify-Shop-Api-Call-Limit: 41/40", 40, 0},
		{shopify, "X-Shopify-Shop-Api-Call-Limit: 39.2 / 40", 40, 0},
		{riot, "X-App-Rate-Limit: 100:120:7,,:,9:,x:120\nX-App-Rate-Limit-Count: 1:120", Unknown, Unknown},
		{riot, "X-App-Rate-Limit: ,,:,9:, 100 : 120 \nX-App-Rate-Limit-Count: 101:120", 100, 0},
		{riot, "X-App-Rate-Limit: 100:120\nX-App-Rate-Limit-Count: -5:120", 100, Unknown},
		{ietf, `RateLimit: "open;r=0;t=30`, Unknown, Unknown},
		{ietf, `RateLimit: "a,b;r=1\"";pk=:QQ==:;r=7;t=30`, Unknown, 7},
		{ietf, `RateLimit: ;r=1, "";r=2,, "a";r=7`, Unknown, 7},
		{ietf, `RateLimit: "a";r=7` + strings.Repeat(",", maxField), Unknown, Unknown},
		{ietf, "RateLimit: \"a\";r=7\nRateLimit: \"b\";r=3\nRateLimit-Policy: \"a\";q=9\nRateLimit-Policy: b;q=8", 8, 3},
		{ietf, "RateLimit: \"a\";r=x, \"b\";r=3, \"c\";r=-1\nRateLimit-Policy: \"b\";q=many", Unknown, 3},
		{Rule{Policy: "p", Field: "RateLimit", Item: `say "\"`}, `RateLimit: "say";r=1, "say \"\\\"";r=2`, Unknown, 2},
		{Rule{Policy: "p", Field: "RateLimit", Item: "c"}, `RateLimit: "a";r=1`, Unknown, Unknown},
	} {
		got := append(readText(compile(t, c.rule), c.text), Notice{Limit: Unknown, Remaining: Unknown})[0]
		if got.Limit != c.limit || got.Remaining != c.remaining {
			t.Errorf("%q: got %+v, want %d and %d", c.text, got, c.limit, c.remaining)
		}
	}
}

func TestRead_EqualItemsTakeLongestReset(t *testing.T) {
	for _, text := range []string{`"a";r=0;t=5, "b";r=0;t=60, "c";r=9;t=90`, `"b";r=0;t=60, "a";r=0, "c";t=90`} {
		if got := readText(compile(t, ietf), "RateLimit: "+text); len(got) != 1 || got[0].Reset != 60*sec {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

func TestRead_LoadsBodyOnlyIfNeeded(t *testing.T) {
	bodyCalls := 0
	body := func() []byte {
		bodyCalls++
		return []byte(`{"cost": 2.1, "left": "7", "big": 1e3, "no": null, "yes": true, "list": [1]}`)
	}
	r := compile(t, github, riot)
	if r.Read(header("X-Ratelimit-Limit", "5"), body, waitNow); r.ReadsBody() || bodyCalls != 0 {
		t.Errorf("got ReadsBody %v and %d calls of body", r.ReadsBody(), bodyCalls)
	}
	r = compile(t, Rule{Policy: "p", Cost: "body:cost", Remaining: "body:left", Limit: "body:big", Resource: "body:no"})
	want := []Notice{{"p", "", 1000, 7, 3, Unknown, 0}}
	if got := r.Read(header(), body, waitNow); !r.ReadsBody() || bodyCalls != 1 || !reflect.DeepEqual(got, want) {
		t.Errorf("got ReadsBody %v, %d calls of body, notices %+v", r.ReadsBody(), bodyCalls, got)
	}
	for _, path := range []string{"no", "yes", "list", "none", "cost.x"} {
		if got := compile(t, Rule{Policy: "p", Cost: "body:" + path}).Read(header(), body, waitNow); got != nil {
			t.Errorf("%s: got %+v", path, got)
		}
	}
	for _, text := range []string{"", "<html>503</html>", `{"cost":`, `{"cost":-}`, `{"cost":1e999}`, `{"cost":nan}`, strings.Repeat("[", 1<<20)} {
		if got := compile(t, Rule{Policy: "p", Cost: "body:cost"}).Read(header(), func() []byte { return []byte(text) }, waitNow); got != nil {
			t.Errorf("%.30q: got %+v", text, got)
		}
	}
}

func TestRead_ResourceNameFitsInKey(t *testing.T) {
	r := compile(t, Rule{Policy: "p", Limit: "X-Limit", Resource: "X-Resource"})
	for text, want := range map[string]string{
		"core": "core", " core ": "core", ":QQ==:": ":QQ==:", "a b": "", "a\nb": "", "é": "", "\x7f": "",
		strings.Repeat("a", maxResource): strings.Repeat("a", maxResource), strings.Repeat("a", maxResource+1): "",
	} {
		if got := r.Read(header("X-Limit", "1", "X-Resource", text), nil, waitNow); len(got) != 1 || got[0].Resource != want {
			t.Errorf("%q: got %+v, want %q", text, got, want)
		}
	}
}

func BenchmarkReadOfGitHub(b *testing.B) {
	r := compile(b, github)
	h := header("X-Ratelimit-Limit", "5000", "X-Ratelimit-Remaining", "4711", "X-Ratelimit-Used", "289",
		"X-Ratelimit-Reset", strconv.FormatInt(waitNow.Unix()+1234, 10), "X-Ratelimit-Resource", "core",
		"Date", "Fri, 15 Jan 2027 08:00:00 GMT", "Content-Type", "application/json; charset=utf-8")
	b.ReportAllocs()
	for b.Loop() {
		if len(r.Read(h, nil, waitNow)) != 1 {
			b.Fatal("got no notices")
		}
	}
}
