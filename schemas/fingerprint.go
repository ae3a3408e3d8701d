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
	// fingerprintTextBytes is how much of an error, without keys and numbers, tells it from others,
	// in bytes: behind that stand excerpts of answers.
	fingerprintTextBytes = 300
	// maxSampleInSummary is how long an answer is that a summary has, in bytes.
	maxSampleInSummary = 300
	// fingerprintBytes of a hash: two of a thousand errors are taken for one in one of
	// 10^13 cases.
	fingerprintBytes = 8
)

var (
	errorWords = regexp.MustCompile(`[0-9A-Za-z]+(-[0-9A-Za-z]+)*`)
	// A word of these is one number or id of many. Codes such as OPENAPI00004 are none.
	numbers = regexp.MustCompile(`^([0-9]+(ms|s|m|h|us|ns|B|KiB|MiB)?|[0-9a-fA-F]{8,}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$`)
)

// Summary is the error in one line, with what a short answer of JSON says: many upstreams
// say 400 to everything, and what is wrong beside it.
func (d DeadLetter) Summary() string {
	text := d.Error
	if len(d.Sample) <= maxSampleInSummary && json.Valid(d.Sample) {
		text += ": " + string(d.Sample)
	}
	return strings.Join(strings.Fields(text), " ")
}

// Fingerprint is the same for letters whose summaries differ in nothing but the entity's key,
// numbers and ids, so that they can be counted, looked at and replayed together. e is the
// letter's entity; it may be empty.
func (d DeadLetter) Fingerprint(e Entity) string {
	// Keys and numbers are of any length, so they go first: what a longer one pushed beyond
	// the end would tell the same errors apart.
	text := cut(d.Summary(), maxErrorBytes)
	for _, key := range []string{url.PathEscape(e.Key), url.QueryEscape(e.Key), e.Key} {
		if len(key) > 3 || errorWords.FindString(key) != key { // a short one may be a part of any word
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
