package derived

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const repositoryPattern = "(?P<owner>[a-z]+)/(?P<repo>[a-z0-9]+)"

func compile(t testing.TB, c Config) *Config {
	t.Helper()
	compiled, err := c.Compile(func(name string) (string, bool) { return repositoryPattern, name == "issues" || name == "commits" })
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// compute adds these items to the collection facet issues, and returns the content.
func compute(t testing.TB, c *Config, items ...string) string {
	t.Helper()
	n := c.New()
	for _, i := range items {
		if err := n.Add("issues", []byte(i)); err != nil {
			t.Fatal(err)
		}
	}
	return string(n.Content())
}

func monthly(zone string) Config {
	return Config{
		Over: map[string]Input{"issues": {At: "at"}}, Measures: map[string]Measure{"n": {Count: true}}, By: Periods, TimeZone: zone,
	}
}

func TestComputation_PeriodsInTimeZone(t *testing.T) {
	for _, c := range []struct {
		name, zone, at         string
		day, week, month, year string
	}{
		{"Seoul: last instant of October", "Asia/Seoul", `"2026-10-31T14:59:59.999Z"`, "2026-10-31", "2026-W44", "2026-10", "2026"},
		{"Seoul: first instant of November", "Asia/Seoul", `"2026-10-31T15:00:00Z"`, "2026-11-01", "2026-W44", "2026-11", "2026"},
		{"Seoul: first instant of the year", "Asia/Seoul", `"2025-12-31T15:00:00Z"`, "2026-01-01", "2026-W01", "2026-01", "2026"},
		{"Seoul: leap day", "Asia/Seoul", `"2028-02-28T15:00:00Z"`, "2028-02-29", "2028-W09", "2028-02", "2028"},
		{"Seoul had summer time in 1988", "Asia/Seoul", `"1988-08-31T14:00:00Z"`, "1988-09-01", "1988-W35", "1988-09", "1988"},
		{"the offset of the text does not count", "UTC", `"2026-11-01T08:59:59+09:00"`, "2026-10-31", "2026-W44", "2026-10", "2026"},
		{"a number is seconds", "Asia/Seoul", `1793458800`, "2026-11-01", "2026-W44", "2026-11", "2026"},
		{"Berlin: before the change to winter time", "Europe/Berlin", `"2026-10-25T00:59:59Z"`, "2026-10-25", "2026-W43", "2026-10", "2026"},
		{"Berlin: the repeated hour", "Europe/Berlin", `"2026-10-25T01:30:00Z"`, "2026-10-25", "2026-W43", "2026-10", "2026"},
		{"Berlin: the day of 25 hours ends an hour later", "Europe/Berlin", `"2026-10-25T22:59:59Z"`, "2026-10-25", "2026-W43", "2026-10", "2026"},
		{"Berlin: and then the next day begins", "Europe/Berlin", `"2026-10-25T23:00:00Z"`, "2026-10-26", "2026-W44", "2026-10", "2026"},
		{"Berlin: the day of 23 hours ends an hour earlier", "Europe/Berlin", `"2026-03-29T22:00:00Z"`, "2026-03-30", "2026-W14", "2026-03", "2026"},
		{"New York: month end in summer", "America/New_York", `"2026-08-01T03:59:59Z"`, "2026-07-31", "2026-W31", "2026-07", "2026"},
		{"New York: month end in winter", "America/New_York", `"2026-12-01T04:59:59Z"`, "2026-11-30", "2026-W49", "2026-11", "2026"},
		{"Santiago: midnight does not exist", "America/Santiago", `"2026-09-06T04:00:00Z"`, "2026-09-06", "2026-W36", "2026-09", "2026"},
		{"Apia: a day that does not exist is skipped", "Pacific/Apia", `"2011-12-30T10:00:00Z"`, "2011-12-31", "2011-W52", "2011-12", "2011"},
		{"the week of January 1 can be week 53", "UTC", `"2027-01-01T00:00:00Z"`, "2027-01-01", "2026-W53", "2027-01", "2027"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := fmt.Sprintf(`{"day":{%q:{"n":1}},"inputs":{"issues":{"collections":0,"complete":0,"items":1,"undated":0}},"month":{%q:{"n":1}},"total":{"n":1},"week":{%q:{"n":1}},"year":{%q:{"n":1}}}`,
				c.day, c.month, c.week, c.year)
			if got := compute(t, compile(t, monthly(c.zone)), `{"at":`+c.at+`}`); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestComputation_Measures(t *testing.T) {
	over := map[string]Input{"issues": {}}
	for _, c := range []struct {
		name    string
		measure Measure
		items   []string
		want    string
	}{
		{"count with a condition", Measure{Count: true, If: "pull"}, []string{`{"pull":{}}`, `{"pull":false}`, `{"pull":null}`, `{}`, `{"pull":0}`}, "2"},
		{"count without a member", Measure{Count: true, Unless: "pull"}, []string{`{"pull":{}}`, `{"pull":false}`, `{}`}, "2"},
		{"sum is exact", Measure{Sum: "v"}, []string{`{"v":0.1}`, `{"v":0.2}`, `{"v":"19.90"}`, `{"v":-0.2}`}, "20"},
		{"sum of large numbers", Measure{Sum: "v"}, []string{`{"v":9223372036854775807}`, `{"v":9223372036854775807}`, `{"v":1e-2}`}, "18446744073709551614.01"},
		{"sum of nothing", Measure{Sum: "v"}, []string{`{}`, `{"v":null}`}, "0"},
		{"sum of a list", Measure{Sum: "v.#.x"}, []string{`{"v":[{"x":1},{"x":2},{}]}`}, "3"},
		{"min of numbers", Measure{Min: "v"}, []string{`{"v":10}`, `{"v":9.5}`, `{"v":"9.40"}`}, "9.4"},
		{"max of times", Measure{Max: "v"}, []string{`{"v":"2026-11-01T08:00:00+09:00"}`, `{"v":"2026-10-31T23:30:00Z"}`}, `"2026-10-31T23:30:00Z"`},
		{"max of texts", Measure{Max: "v"}, []string{`{"v":"a"}`, `{"v":"b\""}`, `{"v":5}`}, `"b\""`},
		{"min of nothing", Measure{Min: "v"}, []string{`{}`}, "null"},
		{"distinct", Measure{Distinct: "v"}, []string{`{"v":"a"}`, `{"v":"a"}`, `{"v":1}`, `{"v":"1.0"}`, `{"v":true}`, `{"v":null}`, `{}`}, "3"},
		{"distinct of lists", Measure{Distinct: "v.#.n"}, []string{`{"v":[{"n":"a"},{"n":"b"}]}`, `{"v":[{"n":"b"},{"n":"c"}]}`, `{"v":[]}`}, "3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := compile(t, Config{Over: over, Measures: map[string]Measure{"m": c.measure}})
			want := fmt.Sprintf(`{"inputs":{"issues":{"collections":0,"complete":0,"items":%d,"undated":0}},"total":{"m":%s}}`, len(c.items), c.want)
			if got := compute(t, config, c.items...); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestComputation_RefusesValues(t *testing.T) {
	for _, c := range []struct {
		measure Measure
		item    string
		want    string
	}{
		{Measure{Sum: "v"}, `{"v":"many"}`, `the value at v is not a number: "many"`},
		{Measure{Sum: "v"}, `{"v":true}`, `the value at v is not a number: "true"`},
		{Measure{Sum: "v"}, `{"v":1e99}`, "the value at v has more than 40 digits"},
		{Measure{Max: "v"}, `{"v":` + strings.Repeat("9", 41) + `}`, "the value at v has more than 40 digits"},
		{Measure{Min: "v"}, `{"v":{"a":1}}`, "the value at v is an object or a nested list; name a member that is a number or a text"},
		{Measure{Distinct: "v"}, `{"v":"` + strings.Repeat("x", 257) + `"}`, "the value at v is a text of 257 bytes; at most 256 are allowed"},
	} {
		n := compile(t, Config{Over: map[string]Input{"issues": {}}, Measures: map[string]Measure{"m": c.measure}}).New()
		if err := n.Add("issues", []byte(c.item)); err == nil || err.Error() != c.want {
			t.Errorf("%.60s: got %v, want %s", c.item, err, c.want)
		}
	}
}

func TestComputation_BoundsMemory(t *testing.T) {
	t.Run("periods", func(t *testing.T) {
		n := compile(t, Config{Over: map[string]Input{"issues": {At: "at"}}, Measures: map[string]Measure{"n": {Count: true}}, By: []Period{Day}}).New()
		added := 0
		for err := error(nil); err == nil; added++ {
			err = n.Add("issues", fmt.Appendf(nil, `{"at":%d}`, added*86400))
			if err != nil && !errors.Is(err, errNumbers) {
				t.Fatal(err)
			}
		}
		if added != MaxNumbers { // the total, and one period for each item before the refused one
			t.Errorf("refused after %d days, want %d", added, MaxNumbers)
		}
	})
	t.Run("distinct", func(t *testing.T) {
		n := compile(t, Config{Over: map[string]Input{"issues": {}}, Measures: map[string]Measure{"n": {Distinct: "v"}}}).New()
		added := 0
		for err := error(nil); err == nil; added++ {
			err = n.Add("issues", fmt.Appendf(nil, `{"v":%d}`, added))
			if err != nil && !errors.Is(err, errDistinct) {
				t.Fatal(err)
			}
		}
		if added != MaxDistinct+1 {
			t.Errorf("refused after %d values, want %d", added, MaxDistinct+1)
		}
	})
}

// naive computes the same content in another way: it adds exact fractions, formats times, and stores
// different values in maps of texts.
type naive struct {
	counts map[string]int
	sums   map[string]*big.Rat
	mins   map[string]*big.Rat
	people map[string]map[string]bool
}

type randomItem struct {
	At    string  `json:"at"`
	Price string  `json:"price"`
	Who   *string `json:"who,omitempty"`
	Draft bool    `json:"draft"`
}

func (n naive) add(i randomItem, zone *time.Location) {
	at, err := time.Parse(time.RFC3339, i.At)
	names := []string{"total"}
	if err == nil {
		names = append(names, "year "+at.In(zone).Format("2006"), "month "+at.In(zone).Format("2006-01"), "day "+at.In(zone).Format(time.DateOnly))
		year, week := at.In(zone).ISOWeek()
		names = append(names, fmt.Sprintf("week %04d-W%02d", year, week))
	}
	price, _ := new(big.Rat).SetString(i.Price)
	for _, name := range names {
		if n.people[name] == nil {
			n.sums[name], n.mins[name], n.people[name] = new(big.Rat), price, map[string]bool{}
		}
		if !i.Draft {
			n.counts[name]++
		}
		n.sums[name].Add(n.sums[name], price)
		if price.Cmp(n.mins[name]) < 0 {
			n.mins[name] = price
		}
		if i.Who != nil {
			n.people[name][*i.Who] = true
		}
	}
}

func randomItems(random *rand.Rand, n int) (all []randomItem) {
	for range n {
		i := randomItem{Draft: random.IntN(3) == 0, Price: fmt.Sprintf("%d.%02d", random.IntN(2_000)-1_000, random.IntN(100))}
		if random.IntN(20) > 0 {
			i.At = time.Unix(random.Int64N(4_000_000_000), 0).UTC().Format(time.RFC3339)
		}
		if random.IntN(10) > 0 {
			who := fmt.Sprint("p", random.IntN(50))
			i.Who = &who
		}
		all = append(all, i)
	}
	return all
}

// result is the content that the property test decodes.
type result struct {
	Total map[string]json.RawMessage
	Year  map[string]map[string]json.RawMessage
	Month map[string]map[string]json.RawMessage
	Week  map[string]map[string]json.RawMessage
	Day   map[string]map[string]json.RawMessage
}

func (r result) flat() map[string]map[string]json.RawMessage {
	all := map[string]map[string]json.RawMessage{"total": r.Total}
	for kind, of := range map[string]map[string]map[string]json.RawMessage{"year ": r.Year, "month ": r.Month, "week ": r.Week, "day ": r.Day} {
		for label, measures := range of {
			all[kind+label] = measures
		}
	}
	return all
}

// For random items in any order, the content must equal that of naive. If no measure is distinct, the
// items are also divided among several results: the merged results must equal the result of all items.
func TestComputation_EqualsRecount(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	zones := []string{"", "Asia/Seoul", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"}
	for round := range 40 {
		config := monthly(zones[round%len(zones)])
		config.Measures = map[string]Measure{"n": {Count: true, Unless: "draft"}, "sum": {Sum: "price"}, "min": {Min: "price"}}
		mergeable := compile(t, config)
		config.Measures["people"] = Measure{Distinct: "who"}
		c := compile(t, config)
		items := randomItems(random, random.IntN(300))
		want := naive{map[string]int{}, map[string]*big.Rat{"total": new(big.Rat)}, map[string]*big.Rat{}, map[string]map[string]bool{}}
		var texts []string
		for _, i := range items {
			want.add(i, c.zone)
			text, _ := json.Marshal(i)
			texts = append(texts, string(text))
		}
		content := compute(t, c, texts...)
		random.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		if again := compute(t, c, texts...); again != content {
			t.Fatalf("seed %d, round %d: another order gives other bytes:\n%s\n%s", seed, round, content, again)
		}
		var got result
		if err := json.Unmarshal([]byte(content), &got); err != nil {
			t.Fatal(err)
		}
		flat := got.flat()
		if len(flat) != len(want.sums) {
			t.Fatalf("seed %d, round %d: got %d periods, want %d", seed, round, len(flat), len(want.sums))
		}
		for name, measures := range flat {
			sum, _ := new(big.Rat).SetString(string(measures["sum"]))
			least, isNumber := new(big.Rat).SetString(string(measures["min"]))
			if string(measures["n"]) != fmt.Sprint(want.counts[name]) || string(measures["people"]) != fmt.Sprint(len(want.people[name])) ||
				sum.Cmp(want.sums[name]) != 0 || isNumber != (want.mins[name] != nil) || (isNumber && least.Cmp(want.mins[name]) != 0) {
				t.Fatalf("seed %d, round %d, %s: got %s, want n %d, people %d, sum %s, min %v", seed, round, name, measures, want.counts[name], len(want.people[name]), want.sums[name], want.mins[name])
			}
		}
		merged, whole := mergeable.New(), compute(t, mergeable, texts...)
		for some := range slices.Chunk(texts, 1+random.IntN(60)) {
			if err := merged.Merge([]byte(compute(t, mergeable, some...))); err != nil {
				t.Fatalf("seed %d, round %d: %v", seed, round, err)
			}
		}
		if string(merged.Content()) != whole {
			t.Fatalf("seed %d, round %d: merged\n%s\nwant\n%s", seed, round, merged.Content(), whole)
		}
	}
}

func TestComputation_MergeRefusesDamagedContent(t *testing.T) {
	c := compile(t, monthly(""))
	for _, content := range []string{"", "[]", `{"total":{"n":1},"month":{"2026-13":{"n":1}}}`, `{"total":{"n":1},"day":{"x":{"n":1}}}`, `{"total":{"n":1},"year":{"2026-1-1-1":{}}}`} {
		if err := c.New().Merge([]byte(content)); err == nil {
			t.Errorf("Merge(%s): got no error", content)
		}
	}
}

func TestInput_KeyOf(t *testing.T) {
	c := compile(t, Config{Over: map[string]Input{"issues": {Key: "{owner}"}, "commits": {}}, Measures: map[string]Measure{"n": {Of: "issues", Count: true}}})
	if key, ok := c.Over["issues"].KeyOf("acme/app"); key != "acme" || !ok {
		t.Errorf("{owner} of acme/app: got %q, %v", key, ok)
	}
	if key, ok := c.Over["issues"].KeyOf("Acme"); ok {
		t.Errorf("a key that does not match the pattern: got %q, want none", key)
	}
	if key, ok := c.Over["commits"].KeyOf("acme/app"); key != "acme/app" || !ok {
		t.Errorf("{key} of acme/app: got %q, %v", key, ok)
	}
}

func TestConfig_CompileErrors(t *testing.T) {
	valid := func() Config { return monthly("Asia/Seoul") }
	for want, change := range map[string]func(*Config){
		"over: name at least one":                        func(c *Config) { c.Over = nil },
		"over.pulls: the source has no facet":            func(c *Config) { c.Over = map[string]Input{"pulls": {At: "at"}} },
		"over.issues.at: is missing":                     func(c *Config) { c.Over = map[string]Input{"issues": {}} },
		"over.issues.at: has no effect":                  func(c *Config) { c.By, c.TimeZone = nil, "" },
		"over.issues.at: \"a|@x\" has a modifier":        func(c *Config) { c.Over = map[string]Input{"issues": {At: "a|@x"}} },
		"over.issues.key: \"{repo}\" must be {key}, or":  func(c *Config) { c.Over = map[string]Input{"issues": {At: "at", Key: "{repo}"}} },
		"over.issues.key: \"owner\" must be {key}, or":   func(c *Config) { c.Over = map[string]Input{"issues": {At: "at", Key: "owner"}} },
		"measures: there are 0; 1 to 32 are allowed":     func(c *Config) { c.Measures = nil },
		"measures.n: set exactly one of count, sum":      func(c *Config) { c.Measures = map[string]Measure{"n": {}} },
		"measures.m: set exactly one of count, sum, min": func(c *Config) { c.Measures = map[string]Measure{"m": {Count: true, Sum: "x"}} },
		"measures.n.of: \"commits\" must name an entry":  func(c *Config) { c.Measures = map[string]Measure{"n": {Of: "commits", Count: true}} },
		"measures.n.if: \"@this\" has a modifier":        func(c *Config) { c.Measures = map[string]Measure{"n": {Count: true, If: "@this"}} },
		"measures.a.b: a name must begin with a letter":  func(c *Config) { c.Measures = map[string]Measure{"a.b": {Count: true}} },
		"by[1]: month is named twice":                    func(c *Config) { c.By = []Period{Month, Month} },
		"by[0]: \"decade\" must be year, month, week":    func(c *Config) { c.By = []Period{"decade"} },
		"timeZone: \"Asia/Soul\" is unknown":             func(c *Config) { c.TimeZone = "Asia/Soul" },
		"timeZone: has no effect without `by`":           func(c *Config) { c.By, c.Over = nil, map[string]Input{"issues": {}} },
		"every: 500ms must be from 1s to 24h":            func(c *Config) { c.Every = 500 * time.Millisecond },
		"all.every: 48h0m0s must be from 1s to 24h":      func(c *Config) { c.All = &All{Every: 48 * time.Hour} },
	} {
		c := valid()
		change(&c)
		_, err := c.Compile(func(name string) (string, bool) { return repositoryPattern, name == "issues" })
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want an error that begins with %s", err, want)
		}
	}
}
