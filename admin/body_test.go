package admin_test

import (
	"strings"
	"testing"

	"github.com/freshet/freshet/admin"
)

func TestDecodeBody_ExplainsBadBodies(t *testing.T) {
	for body, want := range map[string]string{
		`{"name":"a"}`:          "",
		" {} \n":                "",
		"":                      "the body must be an object; the member is name",
		"null":                  "the body must be an object; the member is name",
		`{"name":"` + "\xff\"}": "the body is not valid UTF-8; the member is name",
		`{"name":1}`:            "name: got number, want text; the member is name",
		`{"nam":"a"}`:           `unknown field "nam"; the member is name`,
		`{} {}`:                 "unexpected data after the JSON value; the member is name",
		`{}}`:                   "unexpected data after the JSON value; the member is name",
		`{`:                     "unexpected EOF; the member is name",
	} {
		var into struct {
			Name string `json:"name"`
		}
		got := ""
		if err := admin.DecodeBody(strings.NewReader(body), &into, "; the member is name"); err != nil {
			got = err.Error()
		}
		if !strings.HasSuffix(got, want) || (got == "") != (want == "") {
			t.Errorf("%q: got %q, want %q", body, got, want)
		}
	}
}

func TestCheckNote_WantsOneLine(t *testing.T) {
	for note, valid := range map[string]bool{
		"": true, "why": true, strings.Repeat("é", admin.MaxNoteLength): true,
		strings.Repeat("é", admin.MaxNoteLength+1): false, "a\nb": false, "\xff": false,
	} {
		if err := admin.CheckNote(note); (err == nil) != valid {
			t.Errorf("%.20q: got %v, want valid %v", note, err, valid)
		}
	}
}
