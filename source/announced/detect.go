package announced

import (
	"cmp"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Detected is one limit that Detect found in the headers of a response.
type Detected struct {
	// Rule reads the limit from later responses. Its Policy is empty.
	Rule Rule
	// Label distinguishes several limits of one response, for example "daily" or "requests". It is
	// empty if the headers contain no such word.
	Label string
	// Limit is the number of calls, or Unknown. Remaining is Unknown if it is not reported.
	Limit, Remaining int64
	// Window is the length of the window, or 0 if the headers do not contain it. Reset is the time
	// until the window ends, negative if it is not reported. If Estimated is true, Window is the
	// shortest usual window that is not shorter than Reset; the real window may be longer.
	Window, Reset time.Duration
	Estimated     bool
	// Bucket is true if the header is a pair used/limit, as an upstream with a leaky bucket reports it.
	Bucket bool
	// Headers lists the headers that were read, as "Name: value".
	Headers []string
}

// roleOf maps a word of a header's name to the role of the header within its family. A family is a set
// of headers whose names differ only in the word for the role, such as X-RateLimit-Limit and
// X-RateLimit-Remaining.
var roleOf = map[string]string{
	"limit": "limit", "max": "limit", "maximum": "limit", "total": "limit", "allowed": "limit",
	"remaining": "remaining", "left": "remaining", "available": "remaining",
	"used": "used", "usage": "used", "consumed": "used", "count": "used",
	"reset": "reset", "resets": "reset", "after": "reset",
	"resource": "resource", "bucket": "resource",
	"interval": "window", "window": "window", "period": "window",
	"cost": "cost", "policy": "policy",
}

// windowOf maps a word of a header's name to the window that it names.
var windowOf = map[string]time.Duration{
	"second": time.Second, "secondly": time.Second, "minute": time.Minute, "minutely": time.Minute,
	"hour": time.Hour, "hourly": time.Hour, "day": 24 * time.Hour, "daily": 24 * time.Hour, "month": 31 * 24 * time.Hour, "monthly": 31 * 24 * time.Hour,
}

// unitOf maps a word of a header's name to the unit of its value.
var unitOf = map[string]time.Duration{"milliseconds": time.Millisecond, "ms": time.Millisecond, "seconds": time.Second, "sec": time.Second, "minutes": time.Minute}

var (
	pairValue = regexp.MustCompile(`^\d{1,12}/\d{1,12}$`)
	listValue = regexp.MustCompile(`^\d{1,12}:\d{1,8}(\s*,\s*\d{1,12}:\d{1,8})*$`)
)

// maxDetected bounds the number of limits that Detect returns.
const maxDetected = 8

// Detect returns the limits that the headers of a response report, in any format of this package.
// Unread lists the headers whose name contains "rate limit" but whose value no Rule can read.
func Detect(header http.Header, now time.Time) (found []Detected, unread []string) {
	read := map[string]bool{}
	for _, f := range slices.Concat(detectFields(header, now, read), detectLists(header, read), detectFamilies(header, now, read)) {
		if f.Limit > 0 || f.Remaining >= 0 {
			f.estimateWindow()
			f.Rule.spell()
			found = append(found, f)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if words := wordsOf(name); !read[name] && slices.Contains(words, "ratelimit") && strings.ContainsAny(header.Get(name), "0123456789") {
			unread = append(unread, describeHeader(header, name))
		}
	}
	return found[:min(len(found), maxDetected)], unread
}

// usualWindows lists the lengths of the windows that upstreams often use, in ascending order.
var usualWindows = []time.Duration{
	time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, time.Hour, 24 * time.Hour, maxReset,
}

func (f *Detected) estimateWindow() {
	for _, window := range usualWindows {
		tolerance := time.Duration(0) // how much the reset may exceed the window, because it is rounded or comes from another clock
		if window >= time.Minute {
			tolerance = window / 20
		}
		if f.Window == 0 && f.Reset > 0 && f.Reset <= window+tolerance {
			f.Window, f.Estimated = window, true
		}
	}
}

// spell writes the names of headers as their upstreams document them: RateLimit in place of the
// canonical Ratelimit. The case of a header's name has no meaning.
func (r *Rule) spell() {
	for _, place := range []*string{&r.Limit, &r.Remaining, &r.Used, &r.Usage, &r.Reset, &r.Resource, &r.Cost, &r.Field, &r.PolicyField, &r.List, &r.Counts} {
		*place = spelled(*place)
	}
}

func spelled(name string) string { return strings.ReplaceAll(name, "Ratelimit", "RateLimit") }

// detectFields finds structured fields of the IETF draft: RateLimit with RateLimit-Policy.
func detectFields(header http.Header, now time.Time, read map[string]bool) (found []Detected) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if words := wordsOf(name); words[len(words)-1] != "ratelimit" {
			continue
		}
		items, ok := parseItems(strings.Join(header[name], ","))
		policyName := name + "-Policy"
		policies, _ := parseItems(strings.Join(header[policyName], ","))
		for _, i := range items {
			if !ok || i.name == "" || i.r == "" {
				continue
			}
			read[name], read[policyName] = true, true
			f := Detected{
				Rule: Rule{Field: name}, Limit: Unknown, Remaining: parseCount(i.r, math.Floor), Label: i.name,
				Headers: []string{describeHeader(header, name)},
			}
			if len(policies) > 0 {
				f.Rule.PolicyField = policyName
				f.Headers = append(f.Headers, describeHeader(header, policyName))
			}
			if len(items) > 1 {
				f.Rule.Item = i.name
			}
			f.Reset, _ = (&response{header: header, now: now}).reset(i.t)
			for _, p := range policies {
				if p.name == i.name {
					f.Limit, f.Window = parseCount(p.q, math.Floor), secondsOf(p.w)
				}
			}
			found = append(found, f)
		}
	}
	return found
}

// detectLists finds headers with a pair used/limit, and headers with a list of limit:seconds. A list of
// limits can have a second header, with the suffix -Count and a list of used:seconds.
func detectLists(header http.Header, read map[string]bool) (found []Detected) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		value, words := strings.TrimSpace(header.Get(name)), wordsOf(name)
		if !slices.Contains(words, "ratelimit") && !slices.Contains(words, "limit") {
			continue
		}
		switch {
		case pairValue.MatchString(value):
			read[name] = true
			used, limit, _ := strings.Cut(value, "/")
			n := Notice{Limit: Unknown, Remaining: Unknown}
			n.fillFromUsage(parseCount(limit, math.Floor), parseCount(used, math.Ceil))
			found = append(found, Detected{Rule: Rule{Usage: name}, Limit: n.Limit, Remaining: n.Remaining, Reset: Unknown, Bucket: true, Headers: []string{describeHeader(header, name)}})
		case listValue.MatchString(value) && words[len(words)-1] != "count":
			counts := name + "-Count"
			read[name], read[counts] = true, true
			for entry := range strings.SplitSeq(value, ",") {
				limit, seconds, _ := strings.Cut(strings.TrimSpace(entry), ":")
				f := Detected{Rule: Rule{List: name, Window: secondsOf(seconds)}, Limit: parseCount(limit, math.Floor), Window: secondsOf(seconds), Remaining: Unknown, Reset: Unknown, Headers: []string{describeHeader(header, name)}}
				if header.Get(counts) != "" {
					f.Rule.Counts = counts
					f.Headers = append(f.Headers, describeHeader(header, counts))
					f.Remaining = remainingOf(f.Limit, parseCount(listEntry(header.Get(counts), f.Window), math.Ceil))
				}
				if f.Window > 0 {
					f.Label = strings.Join(slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "x" || w == "ratelimit" }), "-")
					found = append(found, f)
				}
			}
		}
	}
	return found
}

// family is a set of headers that report one limit: each header has a role, such as limit or remaining.
// The field headers maps each role to the canonical name of its header.
type family struct {
	headers map[string]string
	window  time.Duration
	label   string
	named   bool // one of the names contains "rate limit", "quota" or "throttle"
}

// detectFamilies finds separate headers for the limit, the remaining calls and the reset.
func detectFamilies(header http.Header, now time.Time, read map[string]bool) (found []Detected) {
	families := map[string]*family{}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if !read[name] {
			addToFamily(families, name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(families)) {
		f := families[key]
		h := f.headers
		if h["limit"] == "" && h["bare"] != "" {
			h["limit"] = h["bare"]
		}
		rule := Rule{Limit: h["limit"], Remaining: h["remaining"], Reset: h["reset"], Resource: h["resource"], Cost: h["cost"]}
		if rule.Remaining == "" {
			rule.Used = h["used"]
		}
		complete := rule.Limit != "" && rule.Remaining+rule.Used != ""
		if !complete && (!f.named || rule.Remaining == "" && (rule.Limit == "" || f.window == 0 && h["window"] == "" && rule.Reset == "")) {
			continue
		}
		one := Detected{Rule: rule, Limit: Unknown, Remaining: Unknown, Reset: Unknown, Window: f.window, Label: f.label}
		compiled, err := Compile([]Rule{{Policy: "any", Limit: rule.Limit, Remaining: rule.Remaining, Used: rule.Used, Reset: rule.Reset}})
		if err != nil {
			continue
		}
		notices := compiled.Read(header, nil, now)
		if len(notices) == 0 {
			continue
		}
		one.Limit, one.Remaining, one.Reset = notices[0].Limit, notices[0].Remaining, notices[0].Reset
		if w := h["window"]; w != "" {
			one.Window = cmp.Or(windowValue(header.Get(w), wordsOf(w)), one.Window)
		}
		if one.Reset < 0 {
			one.Rule.Reset = "" // the value is not a time
		}
		if one.Limit == Unknown {
			one.Rule.Limit, one.Rule.Used = "", ""
		}
		read[h["used"]] = true
		for _, name := range []string{h["limit"], h["remaining"], rule.Used, h["reset"], h["resource"], h["cost"], h["window"]} {
			if name != "" {
				read[name] = true
				one.Headers = append(one.Headers, describeHeader(header, name))
			}
		}
		// The list RateLimit-Policy of an older IETF draft contains the window: 100;w=60 is 60 s.
		if policies, ok := parseItems(header.Get(h["policy"])); h["policy"] != "" && ok && one.Window == 0 {
			for _, p := range policies {
				if parseCount(p.name, math.Floor) == one.Limit && p.w != "" {
					one.Window = secondsOf(p.w)
					read[h["policy"]] = true
					one.Headers = append(one.Headers, describeHeader(header, h["policy"]))
				}
			}
		}
		found = append(found, one)
	}
	return found
}

// addToFamily adds a header to its family, if its name may belong to a rate limit.
func addToFamily(families map[string]*family, name string) {
	role, window := "bare", time.Duration(0)
	var rest, label []string
	named := false
	for _, word := range wordsOf(name) {
		if r := roleOf[word]; r != "" {
			role = r
			continue
		}
		if unitOf[word] > 0 {
			continue
		}
		window = cmp.Or(window, windowOf[word])
		is := word == "ratelimit" || word == "quota" || word == "throttle"
		named = named || is
		if rest = append(rest, word); !is && word != "x" && word != "api" && word != "rate" {
			label = append(label, word)
		}
	}
	if !named && !slices.Contains(label, "calls") && !slices.Contains(label, "requests") && !slices.Contains(label, "credits") && len(label) > 0 {
		return
	}
	key := strings.Join(rest, " ")
	if families[key] == nil {
		families[key] = &family{headers: map[string]string{}, label: strings.Join(label, "-")}
	}
	f := families[key]
	f.named = f.named || named
	f.window = cmp.Or(f.window, window)
	if role == "reset" && f.headers["reset"] != "" && !strings.HasSuffix(name, "After") {
		return // another reset header, such as X-RateLimit-Reset-After in seconds, is already chosen
	}
	if _, taken := f.headers[role]; !taken || role == "reset" {
		f.headers[role] = name
	}
}

// wordsOf returns the words of a header's name in lower case. "Rate-Limit" becomes one word, the same
// as "RateLimit".
func wordsOf(name string) []string {
	words := strings.Split(strings.ToLower(name), "-")
	for i := 0; i+1 < len(words); i++ {
		if words[i] == "rate" && (words[i+1] == "limit" || words[i+1] == "limits") {
			words = slices.Replace(words, i, i+2, "ratelimit")
		}
	}
	return words
}

// windowValue parses the length of a window: a number in the unit of the header's name, or a duration.
func windowValue(text string, words []string) time.Duration {
	unit := time.Second
	for _, word := range words {
		unit = cmp.Or(unitOf[word], unit)
	}
	n, ok := parseDecimal(strings.TrimSpace(text))
	d := time.Duration(min(n, maxReset.Seconds()*1e3) * float64(unit))
	if !ok {
		d, _ = time.ParseDuration(strings.TrimSpace(text))
	}
	if d < 0 || d > maxReset {
		return 0
	}
	return d
}

// secondsOf parses a whole number of seconds, or returns 0.
func secondsOf(text string) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > int(maxReset/time.Second) {
		return 0
	}
	return time.Duration(n) * time.Second
}

// describeHeader returns "Name: value", with at most 80 bytes of the value.
func describeHeader(header http.Header, name string) string {
	value := strings.TrimSpace(strings.Join(header[name], ", "))
	if len(value) > 80 {
		value = strings.ToValidUTF8(value[:80], "") + "…"
	}
	return spelled(name) + ": " + value
}
