package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAdminClient_NamesTheCAFile(t *testing.T) {
	unknown := httptest.NewTLSServer(http.NotFoundHandler())
	defer unknown.Close()
	api, err := newClient(unknown.URL, "a-token", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.Send(t.Context(), http.MethodGet, "/admin/v1/settings", nil)
	for _, want := range []string{"verify the certificate of " + unknown.URL, "FRESHET_CA_FILE"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a text that contains %q", err, want)
		}
	}
}
