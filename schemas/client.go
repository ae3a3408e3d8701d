package schemas

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// ClientHeader is the header of a request's record that carries the ClientID of the
// client that asked for it. A record without it, of the scheduler, of a retry, of a
// trigger or of an older release, belongs to the client "".
const ClientHeader = "freshet.client"

const (
	clientIDBytes = 12 // of the hash: 96 bits
	// ClientIDSize is the length of a ClientID in characters.
	ClientIDSize = clientIDBytes * 4 / 3
)

// ClientID returns the ID of a client: a part of the SHA-256 of its name, in base64url.
// It tells clients apart without naming them, has ClientIDSize characters, and is the
// same in every process.
func ClientID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return base64.RawURLEncoding.EncodeToString(sum[:clientIDBytes])
}

// ClientOf returns the ClientID that the headers of a record carry; "" if they carry
// none, or none that ClientID could have returned.
func ClientOf(headers []Header) string {
	for _, h := range headers {
		if h.Key == ClientHeader && len(h.Value) == ClientIDSize && !strings.ContainsFunc(string(h.Value), notBase64URL) {
			return string(h.Value)
		}
	}
	return ""
}

func notBase64URL(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// Outstanding is one HIGH request of a client that has been published and has not
// ended, as Redis counts it.
type Outstanding struct {
	Client string // ClientID; "": it is not counted
	Entity Entity
	Number int64 // the request's version
}
