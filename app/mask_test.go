package app

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

func TestLogger_LogsNoSecret(t *testing.T) {
	var stderr strings.Builder
	p := NewProcess(nil, io.Discard, &stderr)
	p.ConfigFile = "testdata/secrets.yaml"
	c, err := p.Load()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SHOP_KEY", "CredentialHunter14")
	if _, err := p.requireSecret(secretRef{env: "SHOP_KEY"}); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"text", "json"} {
		log := p.logger(t.Context(), LogConfig{Format: format}, "worker")
		log.Error("a bug", "panic", fmt.Sprint(c.Database, c.Sources["shop"].Headers, c.Sources["shop"].Facets["items"].Documents["one"]), "credential", "CredentialHunter14",
			"err", os.ErrNotExist)
	}
	text := stderr.String()
	for _, secret := range []string{"Db-Passw0rd", "DirectHunter3", "SslHunter4", "HeaderHunter6", "BearerHunter7", "PathHunter9", "8f3a1c5e7b9d2f4a6c8e", "DocHunter8", "CredentialHunter14"} {
		if strings.Contains(text, secret) {
			t.Errorf("log: got %s, want a text without %s", text, secret)
		}
	}
	if !strings.Contains(text, "file does not exist") {
		t.Errorf("got %s, want the rest of the log as it was", text)
	}
}
