package limiter

import (
	"regexp"
	"strings"
	"testing"

	"github.com/freshet/freshet/schemas"
)

func TestRate_MatchesTheOpenAPIPattern(t *testing.T) {
	_, rest, found := strings.Cut(string(schemas.OpenAPI), "\n    Rate:\n")
	if !found {
		t.Fatal("the document has no schema Rate")
	}
	_, rest, _ = strings.Cut(rest, "pattern: '")
	text, _, _ := strings.Cut(rest, "'\n")
	pattern, err := regexp.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, rate := range []Rate{0, 25, 1.0 / 60, 5000.0 / 3600, 1e6, 999_999, 999_999.999, 1e-5, 1.0 / 3600 / 7, 5e-324, 123456.78901234567, 0.00012345678901234567} {
		if !pattern.MatchString(rate.String()) {
			t.Errorf("%s is written, but does not match the document", rate)
		}
	}
	for _, text := range []string{"25/s", "90/m", "5000/h", "0/s", "999999.9999999999999999999999999/s", "1000000/s", "1e+06/s", "000001.50/m", "123456.5e-999/h", "9e-0/s"} {
		if !pattern.MatchString(text) {
			t.Errorf("%s does not match the document", text)
		}
		if _, err := ParseRate(text); err != nil {
			t.Errorf("%s matches the document, but is not parsed: %v", text, err)
		}
	}
	for _, text := range []string{"1000001/s", "25/d", "25", "/s", "-1/s", "1\u0096u/s"} {
		if pattern.MatchString(text) {
			t.Errorf("%s matches the document", text)
		}
	}
}
