package webhooks

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// FuzzRead reads bodies of any form. A body that package encoding/json rejects must be rejected, and
// the numbers in the result must not exceed their maximums.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"issues.edited", "push"} {
		f.Add([]byte(recorded(f, name)))
	}
	for _, body := range []string{
		`{"type":"batch","events":[{"id":"a"},{"id":[["b"],[["c"]]]},{"id":1e400}]}`, `{"type":["batch"],"events":{"id":"a"}}`, `{"events":[{"id":"\ud800"}],"type":"batch"}`,
		`"` + strings.Repeat("[", 200) + `"`, strings.Repeat("[", 101), `{"a":"\\"}`, "{\"type\":\"batch\",\"type\":\"other\"}", "\xef\xbb\xbf{}", `{"type":"batch","events":[{"id":"a"}]} x`,
	} {
		f.Add([]byte(body))
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		ev, err := r.hook.read(http.Header{"X-Github-Event": {"issues"}}, body)
		if err == nil && !json.Valid(body) {
			t.Errorf("invalid JSON %.200q: got %+v, want an error", body, ev)
		}
		if len(ev.targets) > maxKeys {
			t.Errorf("keys: got %d, want at most %d", len(ev.targets), maxKeys)
		}
		for _, target := range ev.targets {
			if err := target.entity.Check(); err != nil {
				t.Errorf("entity: got %v, want a valid one", err)
			}
		}
	})
}

func TestDepth_CountsOnlyNestedBrackets(t *testing.T) {
	for body, want := range map[string]bool{
		strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth):     true,
		strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1): false,
		strings.Repeat("[]", 1000):                                        true,
		`"` + strings.Repeat(`\"[`, 1000) + `"`:                           true,
		`["\\",` + strings.Repeat("[", maxDepth):                          false,
		`"unterminated ` + strings.Repeat("[", 1000):                      true, // checkDepth accepts this text, and the parser rejects it later
		strings.Repeat("]", maxDepth) + strings.Repeat("[", maxDepth+1):   true, // accepted too, and rejected later
	} {
		if err := checkDepth([]byte(body)); (err == nil) != want {
			t.Errorf("%.40q: got %v, want an error: %v", body, err, !want)
		}
	}
}
