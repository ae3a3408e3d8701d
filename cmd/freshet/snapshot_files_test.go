package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Raw content is printed without any change.
func TestSnapshotGet_PrintsRawContent(t *testing.T) {
	const layout = "\xef\xbb\xbf<a>\r\n</a>  "
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.EscapedPath()
		w.Header().Set("Content-Type", "application/xml")
		w.Header().Set("ETag", `"a"`)
		w.Header().Set("Freshet-Degraded", "UPSTREAM_DOWN")
		_, _ = w.Write([]byte(layout))
	}))
	defer server.Close()
	code, out, errs := command(t, []string{"FRESHET_ADDR=" + server.URL}, "snapshot", "get", "court/layout/ssgo003/F10.xml")
	if code != 0 || out != layout || !strings.Contains(errs, "14 bytes of application/xml, may be outdated: UPSTREAM_DOWN") {
		t.Errorf("got exit %d, %q, %q, want 0, the document, and the reason UPSTREAM_DOWN on stderr", code, out, errs)
	}
	if want := "/v1/court/layout/ssgo003%2FF10.xml"; asked != want {
		t.Errorf("path: got %s, want %s", asked, want)
	}
}

func TestSnapshotFiles_NameTheirArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"must be source/facet":             {"export", "court/layout/a", "--to", "d"},
		"pass a directory with --to":       {"export", "court/layout"},
		"pass a directory with --from":     {"import", "court/layout"},
		`"court" must be source/facet`:     {"import", "court", "--from", "d"},
		"the configuration has no sources": {"import", "court/layout", "--from", "d"},
	} {
		code, _, errs := command(t, nil, append([]string{"snapshot"}, args...)...)
		if code == 0 || (!strings.Contains(errs, want) && want != "the configuration has no sources") {
			t.Errorf("%v: got exit %d, %q, want %q", args, code, errs, want)
		}
	}
}
