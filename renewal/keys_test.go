package renewal

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/freshet/freshet/store/tokens"
)

// testKey is a key of the tests only.
var testKey = newTestKey()

func TestKeyring_RotatesAndNamesMissingKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# keys\n" + keyLine("old", 1))
	k, err := NewKeyring(file)
	if err != nil {
		t.Fatal(err)
	}
	row := tokens.Token{Source: "api", Credential: "app", Generation: 3}
	want := Secrets{"value-of-token", "value-of-refresh"}
	if err := k.Seal(&row, want); err != nil || row.KeyID != "old" || bytes.Contains(row.Sealed, []byte("value")) {
		t.Fatalf("Seal: got %+v, %v", row, err)
	}
	write(keyLine("new", 2) + keyLine("old", 1))
	if got, err := k.Open(row); err != nil || got != want {
		t.Errorf("Open with an added key: got %+v, %v", got, err)
	}
	again := row
	if err := k.Seal(&again, want); err != nil || again.KeyID != "new" {
		t.Errorf("Seal: got key %q, %v, want new", again.KeyID, err)
	}
	write(keyLine("new", 2))
	if _, err := k.Open(row); err == nil || !strings.Contains(err.Error(), "needs the key old") {
		t.Errorf("Open without the key: got %v", err)
	}
	if got, err := k.Open(again); err != nil || got != want {
		t.Errorf("Open with the new key: got %+v, %v", got, err)
	}
	other := again
	other.Generation = 4
	if _, err := k.Open(other); err == nil {
		t.Error("Open accepts the text of another generation")
	}
	write("broken")
	if got, err := k.Open(again); err != nil || got != want {
		t.Errorf("Open with a broken file: got %+v, %v, want the last keys", got, err)
	}
}

func TestNewKeyring_RejectsInvalidFile(t *testing.T) {
	for _, text := range []string{"", "# only\n", "a", "a b c", "a AAAA", "a/b " + strings.Repeat("A", 43) + "=", keyLine("a", 1) + keyLine("a", 2)} {
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewKeyring(file); err == nil || !strings.HasPrefix(err.Error(), "secrets.keyFile") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func newTestKey() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}
