package query

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// echoRequest is a fake admin API. It responds with the method and the path that it received.
func echoRequest(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, r.Method+" "+r.URL.EscapedPath())
}

func TestAdmin_GetsTheRequestUnchanged(t *testing.T) {
	r := newRig(t)
	for _, call := range []string{"GET /admin/v1/x", "PATCH /admin/v1/x/a%2Fb", "POST /admin/v1/x/stop", "DELETE /admin/v1/x"} {
		method, path, _ := strings.Cut(call, " ")
		if a := r.do(method, path+"?x=y"); a.text != call || a.Header.Get("X-Correlation-Id") == "" {
			t.Errorf("%s: got %s and the correlation id %q, want the same call and some id", call, a.text, a.Header.Get("X-Correlation-Id"))
		}
	}
	for _, path := range []string{"/admin", "/admin/v2/x"} {
		if a := r.do(http.MethodGet, path); a.StatusCode != 404 || a.body.Code != "no-such-path" {
			t.Errorf("%s: got %d %s, want 404 no-such-path", path, a.StatusCode, a.text)
		}
	}
}
