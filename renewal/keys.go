package renewal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/freshet/freshet/store/tokens"
)

// Keyring encrypts tokens with the first key of a file. Each line of the file is an id and a key:
//
//	2026-11 3q2+7wAAAA…  (32 bytes, base64)
//
// Other keys only decrypt. A changed file is read at the next use; while it is unreadable, the last
// keys stay in use. Its methods may be called concurrently.
type Keyring struct {
	file string
	mu   sync.Mutex
	keys []key // the keys that were read last
}

type key struct {
	id   string
	aead cipher.AEAD
}

// NewKeyring reads the file.
func NewKeyring(file string) (*Keyring, error) {
	k := &Keyring{file: file}
	keys, err := readKeys(file)
	k.keys = keys
	return k, err
}

var keyID = regexp.MustCompile("^[0-9A-Za-z._-]{1,40}$")

func readKeys(file string) ([]key, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("secrets.keyFile: %w", err)
	}
	var keys []key
	for n, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		var raw []byte
		if len(fields) == 2 && keyID.MatchString(fields[0]) {
			raw, err = base64.StdEncoding.DecodeString(fields[1])
		}
		if err != nil || len(raw) != 32 {
			return nil, fmt.Errorf("secrets.keyFile: line %d of %s must be an id and 32 bytes in base64, as in `2026-11 $(openssl rand -base64 32)`", n+1, file)
		}
		for _, other := range keys {
			if other.id == fields[0] {
				return nil, fmt.Errorf("secrets.keyFile: %s has the key id %s twice", file, fields[0])
			}
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key{fields[0], aead})
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("secrets.keyFile: %s has no key", file)
	}
	return keys, nil
}

// current reads the file with the keys again. If that fails, it returns the keys that were read last.
func (k *Keyring) current() []key {
	keys, err := readKeys(k.file)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.keys = keys
	}
	return k.keys
}

// Secrets are the secrets of one token: its value and its refresh token.
type Secrets struct {
	Value   string `json:"value,omitempty"`
	Refresh string `json:"refresh,omitempty"`
}

// boundTo returns the additional data (AEAD) for the encryption of a token: its source, credential
// and generation. So an encrypted text that was copied to another row or generation can't be
// decrypted.
func boundTo(t tokens.Token) []byte {
	return fmt.Appendf(nil, "%q %q %d", t.Source, t.Credential, t.Generation)
}

// Seal encrypts the secrets for the token's generation, and sets Sealed and KeyID.
func (k *Keyring) Seal(t *tokens.Token, s Secrets) error {
	first := k.current()[0]
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	nonce := make([]byte, first.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	t.Sealed, t.KeyID = first.aead.Seal(nonce, nonce, text, boundTo(*t)), first.id
	return nil
}

// Open decrypts the secrets of a token. The error names the missing key.
func (k *Keyring) Open(t tokens.Token) (s Secrets, err error) {
	if len(t.Sealed) == 0 {
		return s, nil
	}
	for _, key := range k.current() {
		if key.id != t.KeyID {
			continue
		}
		size := key.aead.NonceSize()
		if len(t.Sealed) < size {
			break
		}
		text, err := key.aead.Open(nil, t.Sealed[:size], t.Sealed[size:], boundTo(t))
		if err != nil {
			break
		}
		return s, json.Unmarshal(text, &s)
	}
	if k.has(t.KeyID) {
		return s, fmt.Errorf("the token of source %s, credential %s cannot be decrypted with the key %s of %s; restore that key", t.Source, t.Credential, t.KeyID, k.file)
	}
	return s, fmt.Errorf("the token of source %s, credential %s needs the key %s, which %s does not have; add that key", t.Source, t.Credential, t.KeyID, k.file)
}

func (k *Keyring) has(id string) bool {
	for _, key := range k.current() {
		if key.id == id {
			return true
		}
	}
	return false
}
