// Package derived computes the content of facets from stored items of collections, such as the number of
// issues of each month. It has the settings of such a facet (Config) and the arithmetic (Computation). It
// reads no database: package consumer reads the items.
//
// # Measures and periods
//
// Each measure is computed over all items (member total) and for each period of the setting `by`. An
// item belongs to the period of its time in the time zone of the setting. A period is in the content
// if a measure has counted an item of it. The content is canonical: equal items give equal bytes, in
// any order.
//
//	measure  | value                                                | of several keys
//	---------|------------------------------------------------------|----------------
//	count    | number of items                                      | the sum
//	sum      | exact sum of decimal numbers                         | the sum
//	min, max | smallest and greatest value: numbers < times < texts | the smallest or greatest
//	distinct | number of different values                           | not computable from the results
//
// Invariants:
//   - The memory of a Computation is bounded by MaxNumbers and MaxDistinct. Beyond them it fails.
//   - If the items are divided into parts, Merge of the results of the parts equals the result of all
//     items. Only measures with distinct cannot be merged.
//
// Example: timeZone Asia/Seoul, by [month]. An issue was created at 2026-10-31T15:30:00Z, which is
// 2026-11-01 00:30 in Seoul. It counts in month 2026-11.
package derived

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// AllKey is the key of the entity whose content covers all keys, if Config.All is set.
const AllKey = "_all"

// Config configures a derived facet: its content is computed from stored items of collections, without
// calls.
type Config struct {
	// Over maps the name of each collection facet whose items are read to the way in which they are
	// read.
	Over map[string]Input `yaml:"over"`
	// Measures are the numbers to compute, by name.
	Measures map[string]Measure `yaml:"measures"`
	// By lists kinds of periods: year, month, week (ISO 8601) or day. The measures are computed for
	// each such period, and for all items together (total).
	By []Period `yaml:"by,omitempty"`
	// TimeZone is the time zone of the periods, such as Asia/Seoul; empty means UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
	// Every is the time from the first change of an item to the computation. Changes during this time
	// cause no further computation. From 1s to 24h; 0s means 1m.
	Every time.Duration `yaml:"every,omitempty"`
	// All enables an entity with the key _all. Its content is computed from the collections of all
	// keys.
	All *All `yaml:"all,omitempty"`

	zone *time.Location
}

// All configures the key _all of a derived facet.
type All struct {
	// Every is like every of the facet, for the key _all. From 1s to 24h; 0s means 10m.
	Every time.Duration `yaml:"every,omitempty"`
}

// Input configures how the items of a collection are read.
type Input struct {
	// Key says which result the collection belongs to. With {key}, it is the result with the same key
	// as the collection. With a named group at the start of the collection's keyPattern, as in
	// {owner}, it is the result whose key is the text of this group. Empty means {key}.
	Key string `yaml:"key,omitempty"`
	// At is the gjson path of the time of an item, such as created_at. The value is a time (RFC 3339)
	// or a number of seconds since 1970. It is required if the facet has the setting `by`.
	At string `yaml:"at,omitempty"`

	group *regexp.Regexp // regular expression that matches a key and has the group that Key names; nil means that Key is {key}
	index int            // index of the regular expression's group that Key names; not used if group is nil
}

// Measure is one number of the content. Exactly one of count, sum, min, max and distinct must be set.
// Except for count, the setting is the gjson path of the measured value in an item. An array
// has several values: each of its elements is measured. Items without a value are left out.
type Measure struct {
	// Of is the facet whose items are measured. It is required if over has several entries.
	Of string `yaml:"of,omitempty"`
	// Count counts items.
	Count bool `yaml:"count,omitempty"`
	// Sum adds numbers. A text with a decimal number, such as "19.90", counts as a number.
	Sum string `yaml:"sum,omitempty"`
	// Min finds the smallest value.
	Min string `yaml:"min,omitempty"`
	// Max finds the greatest value.
	Max string `yaml:"max,omitempty"`
	// Distinct counts the different values.
	Distinct string `yaml:"distinct,omitempty"`
	// If is the path of a member. Items without this member are not measured. The values false and null
	// count as no member.
	If string `yaml:"if,omitempty"`
	// Unless is the path of a member. Items with this member are not measured.
	Unless string `yaml:"unless,omitempty"`
}

// Target is a derived entity that must be computed again after a change of an input. Every is the time
// from the change to the computation.
type Target struct {
	Facet, Key string
	Every      time.Duration
}

const (
	defaultEvery, defaultAllEvery = time.Minute, 10 * time.Minute
	minEvery, maxEvery            = time.Second, 24 * time.Hour
	maxMeasures                   = 32
)

var measureName = regexp.MustCompile("^[A-Za-z][0-9A-Za-z_]{0,63}$")

// Compile returns the configuration with its defaults, ready for use. Its errors begin with the name
// of the invalid setting. `pattern` returns the keyPattern of a facet; `known` is false if the source
// has no collection facet of this name.
func (c Config) Compile(pattern func(collection string) (keyPattern string, known bool)) (*Config, error) {
	every, all := c.Delays()
	c.Every = every
	if c.All != nil {
		c.All = &All{all}
		if all < minEvery || all > maxEvery {
			return nil, fmt.Errorf("all.every: %v must be from %v to %v", all, minEvery, maxEvery)
		}
	}
	if every < minEvery || every > maxEvery {
		return nil, fmt.Errorf("every: %v must be from %v to %v", every, minEvery, maxEvery)
	}
	if err := c.compilePeriods(); err != nil {
		return nil, err
	}
	if len(c.Over) == 0 {
		return nil, errors.New("over: name at least one facet with the setting collection, as in over: {issues: {at: created_at}}")
	}
	c.Over = maps.Clone(c.Over)
	for _, name := range slices.Sorted(maps.Keys(c.Over)) {
		in, err := c.Over[name].compile(name, pattern, len(c.By) > 0)
		if err != nil {
			return nil, fmt.Errorf("over.%s%w", name, err)
		}
		c.Over[name] = in
	}
	if len(c.Measures) == 0 || len(c.Measures) > maxMeasures {
		return nil, fmt.Errorf("measures: there are %d; 1 to %d are allowed, as in measures: {opened: {count: true}}", len(c.Measures), maxMeasures)
	}
	c.Measures = maps.Clone(c.Measures)
	for _, name := range slices.Sorted(maps.Keys(c.Measures)) {
		m, err := c.Measures[name].compile(c.Over)
		if err == nil && !measureName.MatchString(name) {
			err = errors.New(": a name must begin with a letter, and have at most 64 letters, digits and underscores")
		}
		if err != nil {
			return nil, fmt.Errorf("measures.%s%w", name, err)
		}
		c.Measures[name] = m
	}
	return &c, nil
}

// Delays returns the values of every and all.every. Settings of 0 are replaced by their defaults. If
// the key _all is not enabled, all is 0.
func (c *Config) Delays() (every, all time.Duration) {
	if c.All != nil {
		all = cmp.Or(c.All.Every, defaultAllEvery)
	}
	return cmp.Or(c.Every, defaultEvery), all
}

func (c *Config) compilePeriods() error {
	for i, p := range c.By {
		switch {
		case !slices.Contains(Periods, p):
			return fmt.Errorf("by[%d]: %q must be year, month, week or day", i, string(p))
		case slices.Contains(c.By[:i], p):
			return fmt.Errorf("by[%d]: %s is named twice; remove one", i, p)
		}
	}
	if c.TimeZone != "" && len(c.By) == 0 {
		return errors.New("timeZone: has no effect without `by`; remove it, or list periods such as by: [month]")
	}
	var err error
	if c.zone, err = time.LoadLocation(c.TimeZone); err != nil {
		return fmt.Errorf("timeZone: %q is unknown; use a name such as Asia/Seoul", c.TimeZone)
	}
	return nil
}

// keyField is the value of Input.Key if a collection belongs to the result with the same key.
const keyField = "{key}"

func (in Input) compile(name string, pattern func(string) (string, bool), dated bool) (Input, error) {
	text, known := pattern(name)
	if !known {
		return in, errors.New(": the source has no facet of this name with the setting collection")
	}
	switch {
	case dated && in.At == "":
		return in, errors.New(".at: is missing; `by` needs the path of an item's time, as in at: created_at")
	case !dated && in.At != "":
		return in, errors.New(".at: has no effect without `by`; remove it, or list periods such as by: [month]")
	case in.At != "":
		if err := announced.CheckPath(in.At); err != nil {
			return in, fmt.Errorf(".at: %w", err)
		}
	}
	if in.Key == "" || in.Key == keyField {
		return in, nil
	}
	group := strings.TrimSuffix(strings.TrimPrefix(in.Key, "{"), "}")
	expr, err := regexp.Compile("^(?:" + text + ")$")
	if err != nil {
		return in, errors.New(".key: the keyPattern of the collection is not valid")
	}
	in.group, in.index = expr, expr.SubexpIndex(group)
	if in.Key != "{"+group+"}" || in.index < 0 || (!strings.HasPrefix(text, "(?P<"+group+">") && !strings.HasPrefix(text, "(?<"+group+">")) {
		return in, fmt.Errorf(".key: %q must be {key}, or the named group at the start of the keyPattern of %s, which is %s", in.Key, name, text)
	}
	return in, nil
}

// KeyOf returns the key of the result to which a collection belongs. `ok` is false if it belongs to
// none.
func (in Input) KeyOf(collection string) (key string, ok bool) {
	if in.group == nil {
		return collection, true
	}
	found := in.group.FindStringSubmatch(collection)
	if found == nil || found[in.index] == "" {
		return "", false
	}
	return found[in.index], true
}

// Exact reports whether a collection belongs to the result with the same key. If not, the keys of the
// collections begin with the key of their result.
func (in Input) Exact() bool { return in.group == nil }

func (m Measure) compile(over map[string]Input) (Measure, error) {
	kinds := 0
	for _, set := range []bool{m.Count, m.Sum != "", m.Min != "", m.Max != "", m.Distinct != ""} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return m, errors.New(": set exactly one of count, sum, min, max and distinct, as in {distinct: user.login}")
	}
	if m.Of == "" && len(over) == 1 {
		for name := range over {
			m.Of = name
		}
	}
	if _, known := over[m.Of]; !known {
		return m, fmt.Errorf(".of: %q must name an entry of over: %s", m.Of, strings.Join(slices.Sorted(maps.Keys(over)), ", "))
	}
	for _, path := range []struct{ name, text string }{
		{"sum", m.Sum}, {"min", m.Min}, {"max", m.Max}, {"distinct", m.Distinct}, {"if", m.If}, {"unless", m.Unless},
	} {
		if path.text == "" {
			continue
		}
		if err := announced.CheckPath(path.text); err != nil {
			return m, fmt.Errorf(".%s: %w", path.name, err)
		}
	}
	return m, nil
}

// path returns the gjson path of the measured value; empty for the measure count.
func (m Measure) path() string { return m.Sum + m.Min + m.Max + m.Distinct }

// NotFoundHold is how long an entity without inputs has a hold. This time is shorter than every. So the
// hold has ended when the first input causes a request.
func (c *Config) NotFoundHold() time.Duration {
	every := c.Every
	if c.All != nil {
		every = min(every, c.All.Every)
	}
	return every / 2
}

// IsAll reports whether key is _all and the key _all is enabled. It returns false for a nil Config.
func (c *Config) IsAll(key string) bool { return c != nil && c.All != nil && key == AllKey }

// Mergeable reports whether the content of _all can be computed from the contents of the other keys.
func (c *Config) Mergeable() bool {
	for _, m := range c.Measures {
		if m.Distinct != "" {
			return false
		}
	}
	return true
}

// ContentSettings returns the settings that determine the content as text; empty for a nil Config.
func (c *Config) ContentSettings() string {
	if c == nil {
		return ""
	}
	text, _ := json.Marshal(Config{Over: c.Over, Measures: c.Measures, By: c.By, TimeZone: c.TimeZone}) // no error is possible: all fields are texts
	return "\nderived " + string(text)
}

// Describe returns the collections, the periods and the measures as a text for operators.
func (c *Config) Describe() string {
	text := "computed from items of " + strings.Join(slices.Sorted(maps.Keys(c.Over)), ", ")
	if len(c.By) > 0 {
		var by []string
		for _, p := range c.By {
			by = append(by, string(p))
		}
		text += " by " + strings.Join(by, ", ")
		if c.TimeZone != "" {
			text += " in " + c.TimeZone
		}
	}
	return text
}
