package schemas

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// ClientHeader is the record header with the ClientID of the client that requested the refresh.
// Records of the scheduler, of retries and of triggers have no such header. Workers treat all of
// them as records of one client, with the empty ClientID.
const ClientHeader = "freshet.client"

const (
	clientIDBytes = 12 // a ClientID has 12 bytes (96 bits) of the SHA-256 of the client's name
	// ClientIDSize is the length of a ClientID in characters.
	ClientIDSize = clientIDBytes * 4 / 3
)

// ClientID returns the ID of a client: a prefix of the SHA-256 of its name, in base64url. It
// distinguishes clients without naming them, and is the same in every process.
func ClientID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return base64.RawURLEncoding.EncodeToString(sum[:clientIDBytes])
}

// ClientOf returns the ClientID in a record's headers, or "" if the ClientID is missing or
// malformed.
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

// Outstanding is one HIGH request of a client that was published and has not ended. Redis counts
// these requests for each client.
type Outstanding struct {
	Client string // ClientID of the client; empty means that the request is not counted
	Entity Entity
	Number int64 // version of the request
}
