package query

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"golang.org/x/text/unicode/norm"

	"github.com/freshet/freshet/source"
)

// namedKeys makes the facet of the test accept names in any case and Unicode form.
func namedKeys(r *rig) {
	r.settings = func(f *source.Facet) { f.KeyPattern, f.KeyFold = ".{1,100}", source.FoldNFCLower }
}

func TestFold_SpellingsAreOneEntity(t *testing.T) {
	r := newRig(t, namedKeys)
	r.putSnapshot("가é b&c", 2*time.Hour)
	spellings := []string{"가é b&c", "가É B&C", norm.NFD.String("가é b&c"), norm.NFD.String("가É B&C")}
	query := url.Values{"key": spellings}
	for i, key := range spellings {
		path := "/v1/nexon/character/" + url.PathEscape(key)
		got := r.do(http.MethodGet, path)
		if got.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: got status %d, want 200", path, got.StatusCode)
		}
		want := ""
		if i > 0 {
			want = "/v1/nexon/character/" + url.PathEscape("가é b&c")
		}
		if location := got.Header.Get("Content-Location"); location != want {
			t.Errorf("Content-Location of %+q: got %q, want %q", key, location, want)
		}
		if got := r.do(http.MethodPost, path+"/refresh"); got.StatusCode != http.StatusAccepted {
			t.Errorf("refresh of %+q: got status %d, want 202", key, got.StatusCode)
		}
	}
	if got := r.do(http.MethodGet, "/v1/nexon/character?"+query.Encode()); got.StatusCode != http.StatusOK {
		t.Errorf("batch: got status %d, want 200", got.StatusCode)
	}
	for _, request := range r.enqueued() {
		if request.Entity.Key != "가é b&c" {
			t.Errorf("update request for %+q, want the canonical key", request.Entity.Key)
		}
	}
	if len(r.enqueued()) == 0 {
		t.Error("update requests: got none, want at least one")
	}
}
