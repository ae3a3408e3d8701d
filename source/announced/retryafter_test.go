package announced

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

var waitNow = time.Unix(1_800_000_000, 0).UTC()

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestRetryAfter_Spellings(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"2":                              2 * time.Second,
		" 2.5 ":                          2500 * time.Millisecond,
		"86400":                          24 * time.Hour,
		"31536000":                       24 * time.Hour,
		strings.Repeat("9", 30):          24 * time.Hour,
		strings.Repeat("9", 400):         24 * time.Hour,
		strings.Repeat("9", 400) + ".5":  24 * time.Hour,
		"-5":                             0,
		"-" + strings.Repeat("9", 400):   0,
		"soon":                           0,
		"1e9":                            0,
		"..":                             0,
		"-":                              0,
		"1-5":                            0,
		"NaN":                            0,
		"Inf":                            0,
		"0x10":                           0,
		waitNow.Format(http.TimeFormat):  0,
		"Fri, 15 Jan 2027 08:00:30 GMT":  30 * time.Second,
		"Friday, 15-Jan-27 08:00:30 GMT": 30 * time.Second,
		"Fri Jan 15 08:00:30 2027":       30 * time.Second,
		"Fri, 15 Jan 2027 07:00:00 GMT":  0,
		"Fri, 15 Jan 2038 08:00:30 GMT":  24 * time.Hour,
	} {
		for _, refused := range []bool{true, false} {
			if got := RetryAfter(refused, header("Retry-After", text), waitNow); got != want {
				t.Errorf("refused %v, Retry-After: %.40s: got %v, want %v", refused, text, got, want)
			}
		}
	}
}

func TestRetryAfter_ResetSpellings(t *testing.T) {
	const s = time.Second
	epoch := waitNow.Unix()
	for _, c := range []struct {
		want  time.Duration
		pairs []string
	}{
		{30 * s, []string{"RateLimit", `"default";r=0;t=30`}},
		{30 * s, []string{"RateLimit", ` default ; r=0 ; t=30 `}},
		{60 * s, []string{"RateLimit", `"burst";r=0;t=30, "daily";r=100;t=7200,"minute";r=0;t=60`}},
		{7200 * s, []string{"RateLimit", `"burst";r=5;t=30,"daily";r=100;t=7200`}},
		{0, []string{"RateLimit", `"burst";r=0;t=0,"daily";r=100;t=7200`}},
		{30 * s, []string{"RateLimit", `"a,b;r=0;t=99\"";pk=:QQ==:;r=0;t=30`}},
		{30 * s, []string{"RateLimit", `"a";r=0,"b";t=30,"c";t=soon;r=0`}},
		{0, []string{"RateLimit", `"open;r=0;t=30`}},
		{0, []string{"RateLimit", `"a";r=0;t=-30`}},
		{0, []string{"RateLimit", `;;,,;t`}},
		{24 * time.Hour, []string{"RateLimit", `"a";r=0;t=` + strings.Repeat("9", 40)}},

		{12 * s, []string{"RateLimit-Reset", "12"}},
		{12 * s, []string{"RateLimit-Reset", "12", "RateLimit-Remaining", "0"}},
		{0, []string{"RateLimit-Reset", "12", "RateLimit-Remaining", "3"}},
		{30 * s, []string{"RateLimit-Reset", strconv.FormatInt(epoch+30, 10)}},

		{1500 * time.Millisecond, []string{"X-RateLimit-Reset-After", "1.5", "X-RateLimit-Reset", strconv.FormatInt(epoch+2, 10)}},
		{2 * s, []string{"X-RateLimit-Reset-After", "soon", "X-RateLimit-Reset", strconv.FormatInt(epoch+2, 10)}},
		{0, []string{"X-RateLimit-Reset-After", "-1"}},

		{30 * s, []string{"X-RateLimit-Reset", strconv.FormatInt(epoch+30, 10)}},
		{30500 * time.Millisecond, []string{"X-RateLimit-Reset", strconv.FormatInt(epoch+30, 10) + ".5"}},
		{30 * s, []string{"X-RateLimit-Reset", strconv.FormatInt((epoch+30)*1000, 10)}},
		{0, []string{"X-RateLimit-Reset", strconv.FormatInt(epoch-30, 10)}},
		{0, []string{"X-RateLimit-Reset", strconv.FormatInt((epoch-30)*1000, 10)}},
		{24 * time.Hour, []string{"X-RateLimit-Reset", strconv.FormatInt(epoch+999_999, 10)}},
		{24 * time.Hour, []string{"X-RateLimit-Reset", strings.Repeat("9", 400)}},
		{417 * s, []string{"X-RateLimit-Reset", "417"}}, // Reddit sends seconds to wait
		{30 * s, []string{"X-RateLimit-Reset", "2027-01-15T08:00:30Z"}},
		{30 * s, []string{"X-RateLimit-Reset", "2027-01-15T17:00:30+09:00"}},
		{30 * s, []string{"X-RateLimit-Reset", "2027-01-15T08:00:30.000Z"}},
		{30 * s, []string{"X-RateLimit-Reset", "2027-01-15T08:00:30+0000"}},
		{30 * s, []string{"X-RateLimit-Reset", "2027-01-15T08:00:30"}},
		{60 * s, []string{"X-RateLimit-Reset", "2027-01-15T08:01Z"}}, // Jira omits the seconds
		{30 * s, []string{"X-RateLimit-Reset", "Fri, 15 Jan 2027 08:00:30 GMT"}},
		{0, []string{"X-RateLimit-Reset", "2027-01-15T07:00:00Z"}},
		{0, []string{"X-RateLimit-Reset", "tomorrow"}},
		{30 * s, []string{"X-RateLimit-Reset", strconv.FormatInt(epoch+30, 10), "X-RateLimit-Remaining", "0"}},
		{0, []string{"X-RateLimit-Reset", strconv.FormatInt(epoch+3000, 10), "X-RateLimit-Remaining", "4711"}}, // 4711 calls are left, so no delay

		{s, []string{"x-ratelimit-reset-requests", "1s"}},
		{6 * time.Minute, []string{"x-ratelimit-reset-requests", "1s", "x-ratelimit-reset-tokens", "6m0s"}},
		{250 * time.Millisecond, []string{"x-ratelimit-reset-requests", "soon", "x-ratelimit-reset-tokens", "250ms"}},
		{0, []string{"x-ratelimit-reset-tokens", "-6m0s"}},
		{24 * time.Hour, []string{"x-ratelimit-reset-tokens", "9999h"}},

		// Retry-After has precedence over all reset headers.
		{2 * s, []string{"Retry-After", "2", "RateLimit", `"a";r=0;t=30`, "X-RateLimit-Reset", "60"}},
		{0, []string{"Retry-After", "0", "X-RateLimit-Reset", "60"}},
		{60 * s, []string{"Retry-After", "soon", "X-RateLimit-Reset", "60"}},
		{30 * s, []string{"RateLimit", `"a";r=0;t=30`, "RateLimit-Reset", "12", "X-RateLimit-Reset", "60"}},
	} {
		if got := RetryAfter(true, header(c.pairs...), waitNow); got != c.want {
			t.Errorf("%.90q: got %v, want %v", c.pairs, got, c.want)
		}
		if header(c.pairs...).Get("Retry-After") == "" && RetryAfter(false, header(c.pairs...), waitNow) != 0 {
			t.Errorf("%.90q: a reset on a successful response gave a delay", c.pairs)
		}
	}
}

func TestRetryAfter_JoinsRepeatedHeaders(t *testing.T) {
	h := http.Header{"Ratelimit": {`"a";r=0;t=5`, `"b";r=0;t=50`}}
	if got := RetryAfter(true, h, waitNow); got != 50*time.Second {
		t.Errorf("got delay %v", got)
	}
}

func TestRetryAfter_UsesDateHeaderAsClock(t *testing.T) {
	const date = "Fri, 15 Jan 2027 07:00:00 GMT" // the upstream's clock: one hour behind ours
	for _, c := range []struct {
		want        time.Duration
		name, value string
	}{
		{30 * time.Second, "Retry-After", "Fri, 15 Jan 2027 07:00:30 GMT"},
		{30 * time.Second, "X-RateLimit-Reset", strconv.FormatInt(waitNow.Unix()-3570, 10)},
		{30 * time.Second, "RateLimit-Reset", "2027-01-15T07:00:30Z"},
		{30 * time.Second, "Retry-After", "30"},
		{30 * time.Second, "X-RateLimit-Reset", "30"},
	} {
		if got := RetryAfter(true, header(c.name, c.value, "Date", date), waitNow); got != c.want {
			t.Errorf("%s: %s: got %v, want %v", c.name, c.value, got, c.want)
		}
		before := waitNow.Add(-48 * time.Hour)
		if got := RetryAfter(true, header(c.name, c.value, "Date", date), before); c.value != "30" && got != maxRetryAfter {
			t.Errorf("%s: %s: got %v with an implausible Date", c.name, c.value, got)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, text := range []string{
		"2.5", "-1", "1800000030", "1800000030000", "2027-01-15T08:00:30Z", "Fri, 15 Jan 2027 08:00:30 GMT", "6m0s", "-9999h",
		`"a";r=0;t=30,"b";t=`, `"\`, `;`, "9223372036854775808", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", strings.Repeat("9", 400),
	} {
		f.Add(text, "0", "Fri, 15 Jan 2027 08:00:20 GMT", int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, text, remaining, date string, now int64) {
		for _, name := range []string{
			"Retry-After", "RateLimit", "RateLimit-Reset", "X-RateLimit-Reset-After", "X-RateLimit-Reset",
			"X-RateLimit-Reset-Requests", "X-RateLimit-Reset-Tokens",
		} {
			h := header(name, text, "X-RateLimit-Remaining", remaining, "RateLimit-Remaining", remaining, "Date", date)
			for _, refused := range []bool{true, false} {
				if got := RetryAfter(refused, h, time.Unix(now, 0)); got < 0 || got > maxRetryAfter {
					t.Fatalf("%s: %q: got %v", name, text, got)
				}
			}
		}
	})
}
