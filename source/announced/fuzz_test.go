package announced

import (
	"strings"
	"testing"
	"time"
)

// FuzzRead compiles rules for every field of Rule and reads the fuzzed text with them, once from a
// header and once from a body. Every Notice must be within its bounds and contain a value.
func FuzzRead(f *testing.F) {
	for _, text := range []string{
		"5000", "0", "-1", "2.5", "1e3", "32/40", "/", "20:1,100:120", ":", "1800000030", "1800000030.5", "1800000030123",
		"6m0s", "120ms", "-9999h", "2027-01-15T08:01Z", "2027-01-15T08:00:30.5+09:00", "Fri, 15 Jan 2027 08:00:30 GMT",
		"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", strings.Repeat("9", 400), "NaN", "9223372036854775808",
		`"daily";r=50;t=30`, `"a";r=0;t=5, "b";q=9;r=0;t=60`, `"\`, `;`, `"a,b;r=1\"";pk=:QQ==:;r=7`,
	} {
		f.Add(text, "Fri, 15 Jan 2027 08:00:20 GMT", `{"a": "`+text+`"}`, "a", waitNow.Unix())
		f.Add(text, text, `{"a": {"b": [{"c": 7.5}, `+text+`]}}`, "a.b.#.c", int64(-1<<62))
	}
	f.Add("", "", "<html>", `a.#(b=="c")#|0`, int64(1<<62))
	f.Add("core", "", strings.Repeat(`{"a":[`, 1000), "*.*", int64(0))
	f.Fuzz(func(t *testing.T, text, date, body, path string, now int64) {
		h := header("X", text, "X", date, "Y", text, "Date", date)
		for _, place := range []string{"X", "Date", "body:" + path} {
			r, err := Compile([]Rule{
				{Policy: "each", Limit: place, Remaining: place, Reset: place, Resource: place, Cost: place},
				{Policy: "used", Limit: "Y", Used: place},
				{Policy: "usage", Usage: place},
				{Policy: "field", Field: place, PolicyField: place},
				{Policy: "item", Field: place, Item: "daily"},
				{Policy: "list", List: place, Counts: "Y", Window: 120 * time.Second},
			})
			if err != nil {
				continue
			}
			for _, n := range r.Read(h, func() []byte { return []byte(body) }, time.Unix(now, 0)) {
				for _, count := range []int64{n.Limit, n.Remaining, n.Cost} {
					if count < Unknown || count > maxCount {
						t.Fatalf("got invalid notice %+v", n)
					}
				}
				if n.Reset < Unknown || n.Reset > maxReset || n.Slack < 0 || n.Slack > time.Hour || n.Slack > 0 && n.Reset < 0 {
					t.Fatalf("got invalid notice %+v", n)
				}
				if n.Limit == Unknown && n.Remaining == Unknown && n.Cost == Unknown && n.Reset < 0 && n.Resource == "" {
					t.Fatalf("got %+v, a notice without a value", n)
				}
				if len(n.Resource) > maxResource || strings.ContainsAny(n.Resource, " \r\n\x00") {
					t.Fatalf("got invalid notice %+v", n)
				}
			}
		}
	})
}
