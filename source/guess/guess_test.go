package guess

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/announced"
)

func TestParseLimit_Forms(t *testing.T) {
	for text, want := range map[string]Limit{
		"10/s": {10, time.Second}, "600/m": {600, time.Minute}, "5000/h": {5000, time.Hour}, "20000/d": {20000, 24 * time.Hour},
		"100/2m": {100, 2 * time.Minute}, "20/day": {20, 24 * time.Hour}, " 5 / 10s ": {5, 10 * time.Second},
	} {
		if got, err := ParseLimit(text); err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "/s", "-1/s", "0/s", "1.5/s", "10/w", "10/0s", "10/48h", "100000/s", "9999999999999999999/s", "10/s/s"} {
		if got, err := ParseLimit(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

func TestPolicies_ComparesStatedAndReported(t *testing.T) {
	reported := announced.Detected{Limit: 60, Remaining: 59, Window: time.Minute, Reset: time.Minute, Rule: announced.Rule{Limit: "A", Remaining: "B"}, Headers: []string{"A: 60"}}
	plain := announced.Detected{Limit: 5, Remaining: announced.Unknown, Window: time.Second, Reset: announced.Unknown, Rule: announced.Rule{Limit: "C"}, Headers: []string{"C: 5"}}
	for name, c := range map[string]struct {
		stated []Limit
		found  []announced.Detected
		want   []string
		check  string
	}{
		"nothing":                {nil, nil, []string{"second 1 1s"}, "no response reports a limit"},
		"stated":                 {[]Limit{{10, time.Second}}, nil, []string{"second 10 1s"}, ""},
		"stated twice":           {[]Limit{{10, time.Second}, {7, time.Second}}, nil, []string{"second 7 1s"}, ""},
		"reported":               {nil, []announced.Detected{reported}, []string{"minute 60 1m reported"}, ""},
		"stated above reported":  {[]Limit{{10, time.Second}}, []announced.Detected{reported}, []string{"second 10 1s", "minute 60 1m reported"}, "the responses report 60 in 1m"},
		"stated below reported":  {[]Limit{{1, time.Second}}, []announced.Detected{reported}, []string{"second 1 1s", "minute 60 1m reported"}, ""},
		"same window, lower":     {[]Limit{{10, time.Second}}, []announced.Detected{plain}, []string{"second 5 1s"}, "the lower one was written"},
		"same window, higher":    {[]Limit{{3, time.Second}}, []announced.Detected{plain}, []string{"second 3 1s"}, ""},
		"same limit, two facets": {nil, []announced.Detected{reported, reported}, []string{"minute 60 1m reported"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var checks []string
			var got []string
			for _, p := range policiesOf(c.stated, c.found, false, func(kind, format string, args ...any) {
				if kind == "check" {
					checks = append(checks, fmt.Sprintf(format, args...))
				}
			}) {
				text := fmt.Sprintf("%s %d %s", p.name, p.limit, schemas.FormatDuration(p.window))
				if p.reported {
					text += " reported"
				}
				got = append(got, text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("policies: got %q, want %q", got, c.want)
			}
			if all := strings.Join(checks, "\n"); (c.check == "") != (all == "") || !strings.Contains(all, c.check) {
				t.Errorf("checks: got %q, want %q", all, c.check)
			}
		})
	}
}

func TestFindList_Paths(t *testing.T) {
	for body, want := range map[string]string{
		`[1]`:                               "",
		`{"data": []}`:                      "data",
		`{"tags": ["a"], "items": [{}]}`:    "items",
		`{"products": [{"id": 1}]}`:         "products",
		`{"data": {"products": [{}]}}`:      "data.products",
		`{"id": 1, "tags": ["a"]}`:          "none",
		`{"user": {"orders": [{"id": 1}]}}`: "none",
		`{"a.b": [{"id": 1}]}`:              "none",
		`"text"`:                            "none",
	} {
		v, ok := decodeBody([]byte(body))
		got := "none"
		if l, found := findList(v); ok && found {
			got = l.path
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

func TestNextPage_CursorsAndParams(t *testing.T) {
	for body, want := range map[string]string{
		`{"next_cursor": "x"}`:                        "next_cursor cursor",
		`{"nextCursor": "x"}`:                         "nextCursor cursor",
		`{"next_page_token": "x"}`:                    "next_page_token page_token",
		`{"nextPageToken": "x"}`:                      "nextPageToken pageToken",
		`{"paging": {"next": {"after": "7"}}}`:        "paging.next.after after",
		`{"meta": {"pagination": {"next": 2}}}`:       "meta.pagination.next page",
		`{"next_page": 2}`:                            "next_page page",
		`{"response_metadata": {"next_cursor": "x"}}`: "response_metadata.next_cursor cursor",
		`{"next": "https://x.example/?page=2"}`:       "url",
		`{"next": "/x?page=2"}`:                       "url",
		`{"next": null}`:                              "none",
		`{"next_cursor": ""}`:                         "none",
		`{"cursor": 7}`:                               "none",
		`[{"next_cursor": "x"}]`:                      "none",
	} {
		v, _ := decodeBody([]byte(body))
		paging, url := nextPage(v)
		got := "none"
		switch {
		case paging != nil:
			got = paging.Cursor + " " + paging.Param
		case url:
			got = "url"
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

func TestSourceName_Hosts(t *testing.T) {
	for host, want := range map[string]string{
		"api.github.com": "github", "shop.example.co.kr": "example", "localhost": "local", "127.0.0.1": "local", "::1": "local", "192.168.0.1": "api",
		"intranet": "intranet", "api.dev": "api", "xn--e1afmkfd.example": "xn-e1afmkfd", "...": "api", "3scale.net": "3scale", strings.Repeat("a", 63) + ".com": strings.Repeat("a", 40),
	} {
		if got := sourceName(host); got != want {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
	}
}

func TestShellQuote_Words(t *testing.T) {
	for word, want := range map[string]string{"shop/product/42": "shop/product/42", "a b": "'a b'", "it's": `'it'\''s'`, "": "''", "$(x)": "'$(x)'", "a\nb": "'a?b'"} {
		if got := ShellQuote(word); got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
	}
}
