package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

const (
	// fingerprintTextBytes is how many bytes at the beginning of an error a fingerprint covers,
	// after keys and numbers are replaced. Excerpts of long responses come later in the error, so
	// they have no influence.
	fingerprintTextBytes = 300
	// maxSampleInSummary is the maximum length of a response that a summary includes, in bytes.
	maxSampleInSummary = 300
	// fingerprintBytes is the length of a fingerprint in bytes. Among a thousand errors the
	// probability that any two collide is below 10^-13.
	fingerprintBytes = 8
)

var (
	errorWords = regexp.MustCompile(`[0-9A-Za-z]+(-[0-9A-Za-z]+)*`)
	// numbers matches words that are a number or an ID. Error codes such as OPENAPI00004 do not
	// match.
	numbers = regexp.MustCompile(`^([0-9]+(ms|s|m|h|us|ns|B|KiB|MiB)?|[0-9a-fA-F]{8,}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$`)
)

// Summary returns the error in one line. It includes the upstream's response if the response is
// short JSON. Many upstreams answer every error with status 400 and explain it in the body.
func (d DeadLetter) Summary() string {
	text := d.Error
	if len(d.Sample) <= maxSampleInSummary && json.Valid(d.Sample) {
		text += ": " + string(d.Sample)
	}
	return strings.Join(strings.Fields(text), " ")
}

// Fingerprint returns a hash that is equal for dead letters of the same kind, so that they can be
// counted, listed and replayed together. The summaries of such dead letters differ only in the
// entity's key, in numbers and in IDs. `e` is the dead letter's entity; it is empty if the entity is
// unknown.
func (d DeadLetter) Fingerprint(e Entity) string {
	// Keys and numbers vary in length, so they are replaced before the text is cut. Otherwise the
	// end of the text that the hash covers would depend on the length of the key.
	text := cut(d.Summary(), maxErrorBytes)
	for _, key := range []string{url.PathEscape(e.Key), url.QueryEscape(e.Key), e.Key} {
		// A key of up to 3 bytes that is one word, for example 42, is not replaced here, because
		// longer words may contain it. It is replaced below, where it stands as a whole word.
		if len(key) > 3 || errorWords.FindString(key) != key {
			text = strings.ReplaceAll(text, key, "#")
		}
	}
	text = errorWords.ReplaceAllStringFunc(text, func(word string) string {
		if word == e.Key || numbers.MatchString(word) {
			return "#"
		}
		return word
	})
	sum := sha256.Sum256([]byte(string(d.Reason) + "\x00" + strconv.Itoa(d.Status) + "\x00" + cut(text, fingerprintTextBytes)))
	return hex.EncodeToString(sum[:fingerprintBytes])
}
