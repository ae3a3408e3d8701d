package announced

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// detected formats a limit as text: "LABEL LIMIT/REMAINING WINDOW RESET".
func detected(f Detected) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d/%d %v %v", f.Label, f.Limit, f.Remaining, f.Window, f.Reset))
}

func TestDetect_KnownSpellings(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		want   []string
	}{
		"GitHub":                  {[]string{"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "1800003600", "X-RateLimit-Used", "1", "X-RateLimit-Resource", "core"}, []string{"5000/4999 1h0m0s 1h0m0s"}},
		"reset after an hour":     {[]string{"X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "59", "X-RateLimit-Reset", "3601"}, []string{"60/59 1h0m0s 1h0m1s"}},
		"words":                   {[]string{"X-Rate-Limit-Limit", "15", "X-Rate-Limit-Remaining", "3", "X-Rate-Limit-Reset", "30"}, []string{"15/3 1m0s 30s"}},
		"without prefix":          {[]string{"RateLimit-Limit", "100", "RateLimit-Remaining", "99", "RateLimit-Reset", "5"}, []string{"100/99 10s 5s"}},
		"only used":               {[]string{"X-RateLimit-Limit", "60", "X-RateLimit-Used", "20"}, []string{"60/40 0s -1ns"}},
		"reset-after wins":        {[]string{"X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "4", "X-RateLimit-Reset", "1800000001.1", "X-RateLimit-Reset-After", "1.1", "X-RateLimit-Bucket", "abcd"}, []string{"5/4 10s 1.1s"}},
		"draft, one item":         {[]string{"RateLimit", `"daily";r=50;t=30`, "RateLimit-Policy", `"daily";q=1000;w=86400`}, []string{"daily 1000/50 24h0m0s 30s"}},
		"draft, two items":        {[]string{"RateLimit", `"burst";r=9;t=3, "daily";r=50;t=30`, "RateLimit-Policy", `"burst";q=100;w=60,"daily";q=1000;w=86400`}, []string{"burst 100/9 1m0s 3s", "daily 1000/50 24h0m0s 30s"}},
		"draft with prefix":       {[]string{"Beta-RateLimit", `"tenant";r=1;t=2`, "Beta-RateLimit-Policy", `"tenant";q=65;w=3600`}, []string{"tenant 65/1 1h0m0s 2s"}},
		"older draft with policy": {[]string{"RateLimit-Limit", "100", "RateLimit-Remaining", "9", "RateLimit-Reset", "50", "RateLimit-Policy", "100;w=60"}, []string{"100/9 1m0s 50s"}},
		"pair":                    {[]string{"X-Shopify-Shop-Api-Call-Limit", "32/40"}, []string{"40/8 0s -1ns"}},
		"list": {
			[]string{"X-App-Rate-Limit", "20:1,100:120", "X-App-Rate-Limit-Count", "1:1,2:120"},
			[]string{"app 20/19 1s -1ns", "app 100/98 2m0s -1ns"},
		},
		"window in the name":  {[]string{"X-RateLimit-Limit-Minute", "20", "X-RateLimit-Remaining-Minute", "19"}, []string{"minute 20/19 1m0s -1ns"}},
		"window in a header":  {[]string{"X-HubSpot-RateLimit-Max", "190", "X-HubSpot-RateLimit-Remaining", "189", "X-HubSpot-RateLimit-Interval-Milliseconds", "10000", "X-HubSpot-RateLimit-Daily", "650000", "X-HubSpot-RateLimit-Daily-Remaining", "649000"}, []string{"hubspot 190/189 10s -1ns", "hubspot-daily 650000/649000 24h0m0s -1ns"}},
		"two units":           {[]string{"x-ratelimit-limit-requests", "60", "x-ratelimit-remaining-requests", "59", "x-ratelimit-reset-requests", "1s", "x-ratelimit-limit-tokens", "1000", "x-ratelimit-remaining-tokens", "999", "x-ratelimit-reset-tokens", "6m0s"}, []string{"requests 60/59 1s 1s", "tokens 1000/999 10m0s 6m0s"}},
		"quota":               {[]string{"X-Quota-Limit", "60", "X-Quota-Remaining", "59"}, []string{"60/59 0s -1ns"}},
		"requests":            {[]string{"X-Requests-Remaining", "59", "X-Requests-Used", "41", "X-Requests-Limit", "100"}, []string{"requests 100/59 0s -1ns"}},
		"remaining only":      {[]string{"X-Ms-Ratelimit-Remaining-Subscription-Reads", "11999"}, []string{"subscription-reads -1/11999 0s -1ns"}},
		"other headers":       {[]string{"Content-Length", "12", "X-Frame-Options", "1", "X-Max-Age", "3", "X-Total-Count", "400", "X-Page-Limit", "20"}, nil},
		"a flag":              {[]string{"X-RateLimit-NearLimit", "true"}, nil},
		"limit without reset": {[]string{"X-RateLimit-Limit", "60"}, nil},
		"negative":            {[]string{"X-RateLimit-Limit", "-1", "X-RateLimit-Remaining", "-1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found, _ := Detect(header(c.header...), waitNow)
			var got []string
			for _, f := range found {
				got = append(got, detected(f))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("limits: got %q, want %q", got, c.want)
			}
		})
	}
}

// A rule that Detect derives from a response must be able to read the quota state in this response.
func TestDetect_RuleReadsTheResponse(t *testing.T) {
	for _, h := range [][]string{
		{"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "1800003600"},
		{"RateLimit", `"burst";r=9;t=3, "daily";r=4999;t=30`, "RateLimit-Policy", `"burst";q=100;w=60,"daily";q=5000;w=86400`},
		{"X-App-Rate-Limit", "5000:1", "X-App-Rate-Limit-Count", "1:1"},
		{"X-Shop-Api-Call-Limit", "1/5000"},
		{"X-RateLimit-Limit", "5000", "X-RateLimit-Used", "1"},
	} {
		found, unread := Detect(header(h...), waitNow)
		if len(found) == 0 || len(unread) != 0 {
			t.Errorf("%q: got %d limits and unread %q, want at least 1 and none", h, len(found), unread)
			continue
		}
		rule := found[len(found)-1].Rule
		rule.Policy = "any"
		notices := compile(t, rule).Read(header(h...), nil, waitNow)
		if len(notices) != 1 || notices[0].Remaining != 4999 {
			t.Errorf("%q: got notices %+v, want remaining 4999", h, notices)
		}
	}
}

func TestDetect_ListsUnreadHeaders(t *testing.T) {
	_, unread := Detect(header("RateLimit", "limit=100, remaining=50, reset=5", "X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "4", "X-RateLimit-Used", "1"), waitNow)
	if want := []string{"RateLimit: limit=100, remaining=50, reset=5"}; !slices.Equal(unread, want) {
		t.Errorf("unread headers: got %q, want %q", unread, want)
	}
}

func FuzzDetect(f *testing.F) {
	f.Add("X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "1")
	f.Add("RateLimit", `"a";r=1;t=5`, "RateLimit-Policy", `"a";q=9;w=60`)
	f.Add("X-App-Rate-Limit", "20:1,100:120", "X-App-Rate-Limit-Count", "x")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		found, _ := Detect(header(name1, value1, name2, value2), waitNow)
		for _, one := range found {
			one.Rule.Policy = "any"
			if _, err := Compile([]Rule{one.Rule}); err != nil {
				t.Fatalf("got rule %+v with error %v, want a valid one", one.Rule, err)
			}
			if one.Window < 0 || one.Window > maxReset || one.Limit > maxCount || one.Limit < Unknown || one.Remaining < Unknown || one.Reset > 24*31*time.Hour {
				t.Fatalf("got invalid limit %+v", one)
			}
		}
	})
}
