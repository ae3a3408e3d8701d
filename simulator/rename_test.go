package simulator

import (
	"net/url"
	"strings"
	"testing"
)

func TestRename_MovesANameToAnotherOcid(t *testing.T) {
	s := New(Config{})
	ocid := func(name string) string {
		t.Helper()
		w := get(t, s, base+"id?character_name="+url.QueryEscape(name))
		if w.Code != 200 {
			return ""
		}
		return strings.TrimSuffix(strings.TrimPrefix(w.Body.String(), `{"ocid":"`), `"}`)
	}
	first := ocid("A&b")
	if got := ocid("a&B"); got != first || len(first) != 32 {
		t.Errorf("other case: got ocid %q, want %q", got, first)
	}
	for _, want := range []string{"next", ""} {
		if err := s.Control(Control{Renames: map[string]string{"a&b": want}}); err != nil {
			t.Fatal(err)
		}
		if got := ocid("A&b"); got != want {
			t.Errorf("after the rename: got ocid %q, want %q", got, want)
		}
	}
	if got := ocid("other"); len(got) != 32 {
		t.Errorf("another name: got ocid %q, want one of 32 characters", got)
	}
}
