package scheduler

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestRateCap_NeedsARateAndAnHour(t *testing.T) {
	for text, want := range map[string]string{
		"[]":            "",
		"[{rate: 0/s}]": "",
		"[{from: 19, to: 3, rate: 1/s}, {from: 0, to: 24, rate: 2/s}]": "",
		"[{from: 19, to: 23}]":                       "[0] has no rate; write one as in {from: 19, to: 23, rate: 150/s}",
		"[{rate: 1/s}, {rate: }]":                    "[1] has no rate",
		"[{rate: 1/s}, {from: 1, to: 2, rate: 2/s}]": "[1] never applies",
		"[{from: 22, to: 12, rate: 1/s}, {from: 12, to: 22, rate: 1/s}, {rate: 2/s}]": "[2] never applies",
		"[{from: 1, to: 25, rate: 1/s}]":                                              "[0]: hours are 0 to 24",
		"[{rate: 1/h}]":                                                               "",
		"[{rate: 0.1/h}]":                                                             "[0]: rate: ",
	} {
		var all []RateCap
		err := yaml.UnmarshalWithOptions([]byte(text), &all, yaml.Strict())
		if err == nil {
			err = checkRateCaps(all)
		}
		if (err == nil) != (want == "") || (err != nil && !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: got %v, want the prefix %q", text, err, want)
		}
	}
	if yaml.UnmarshalWithOptions([]byte("[{rate: 1/s, form: 3}]"), new([]RateCap), yaml.Strict()) == nil {
		t.Error("unknown field: got no error, want one")
	}
}

func TestRateCap_SpansMidnight(t *testing.T) {
	night := RateCap{From: 22, To: 3, Rate: 50}
	for hour, want := range map[int]bool{21: false, 22: true, 23: true, 0: true, 2: true, 3: false} {
		if got := night.applies(hour); got != want {
			t.Errorf("applies at hour %d: got %v, want %v", hour, got, want)
		}
	}
}
