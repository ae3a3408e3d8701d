package schemas

import (
	"strings"
	"testing"
)

func TestFingerprint_IgnoresKeysAndNumbers(t *testing.T) {
	of := func(status int, key, text string) string {
		return DeadLetter{Reason: Upstream4xx, Status: status, Error: text}.Fingerprint(Entity{Source: "s", Facet: "f", Key: key})
	}
	base := of(400, "abcd", `GET https://x/y?id=abcd: 400 after 31ms (request 7f3c9a0011, 0b6e7a54-1f8b-4c53-9a3e-5a4f3f1f9c11): {"name":"OPENAPI00004"}`)
	for name, same := range map[string]string{
		"another key":        of(400, "other-key", `GET https://x/y?id=other-key: 400 after 31ms (request 7f3c9a0011, 0b6e7a54-1f8b-4c53-9a3e-5a4f3f1f9c11): {"name":"OPENAPI00004"}`),
		"an escaped key":     of(400, "a/b c", `GET https://x/y?id=a%2Fb+c: 400 after 31ms (request 7f3c9a0011, 0b6e7a54-1f8b-4c53-9a3e-5a4f3f1f9c11): {"name":"OPENAPI00004"}`),
		"a short key":        of(400, "ab", `GET https://x/y?id=ab: 400 after 31ms (request 7f3c9a0011, 0b6e7a54-1f8b-4c53-9a3e-5a4f3f1f9c11): {"name":"OPENAPI00004"}`),
		"other numbers, ids": of(400, "abcd", `GET https://x/y?id=abcd: 400 after 1700ms (request 00aa11bb22, 11111111-1f8b-4c53-9a3e-5a4f3f1f9c11): {"name":"OPENAPI00004"}`),
	} {
		if same != base {
			t.Errorf("%s: another fingerprint", name)
		}
	}
	for name, other := range map[string]string{
		"another code":   of(400, "abcd", `GET https://x/y?id=abcd: 400 after 31ms (request 7f3c9a0011, 0b6e7a54-1f8b-4c53-9a3e-5a4f3f1f9c11): {"name":"OPENAPI00005"}`),
		"another status": of(422, "abcd", `GET https://x/y?id=abcd: 400 after 31ms (request 7f3c9a0011, 0b6e7a54-1f8b-4c53-9a3e-5a4f3f1f9c11): {"name":"OPENAPI00004"}`),
		"nothing":        of(0, "", ""),
	} {
		if other == base {
			t.Errorf("%s: the same fingerprint", name)
		}
	}
	if (DeadLetter{Reason: ParseError}).Fingerprint(Entity{}) == (DeadLetter{Reason: Unstorable}).Fingerprint(Entity{}) {
		t.Error("two reasons have one fingerprint")
	}
}

// TestFingerprint_IgnoresKeysInLongErrors places keys of different lengths at many positions of a
// long error. The fingerprint must not depend on the key, even if the text is cut within the key or
// just after it.
func TestFingerprint_IgnoresKeysInLongErrors(t *testing.T) {
	of := func(lead int, key, number, tail string) string {
		text := "GET https://x/" + strings.Repeat("long/", lead) + "?id=" + key + ": 500 after " + number + "ms: " + strings.Repeat("and so on, ", 30) + tail
		return DeadLetter{Reason: Upstream5xx, Status: 500, Error: text}.Fingerprint(Entity{Source: "s", Facet: "f", Key: key})
	}
	for lead := range 80 {
		base := of(lead, "abcd", "1", "")
		for name, got := range map[string]string{
			"a long key":     of(lead, strings.Repeat("k", 250), "1", ""),
			"a longer key":   of(lead, strings.Repeat("kl", 600), "1", ""),
			"a long number":  of(lead, "abcd", strings.Repeat("7", 40), ""),
			"an excerpt":     of(lead, "abcd", "1", "of an answer"),
			"all of it long": of(lead, strings.Repeat("k", 250), strings.Repeat("7", 40), strings.Repeat("x", 8<<10)),
		} {
			if got != base {
				t.Errorf("%s behind %d bytes: another fingerprint", name, 5*lead)
			}
		}
	}
	if of(0, "abcd", "1", "") == of(1, "abcd", "1", "") {
		t.Error("two long errors have one fingerprint")
	}
}

func TestSummary_IncludesShortAnswer(t *testing.T) {
	for want, d := range map[string]DeadLetter{
		`answered 400: { "name": "OPENAPI00004" }`: {Error: "answered\n400", Sample: []byte("{\n  \"name\":  \"OPENAPI00004\"\n}")},
		"answered 500": {Error: "answered 500", Sample: []byte("<html>no</html>")},
		"answered 501": {Error: "answered 501", Sample: []byte(`"` + strings.Repeat("x", 400) + `"`)},
		"no answer":    {Error: "no answer"},
	} {
		if got := d.Summary(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	one, other := DeadLetter{Error: "400", Sample: []byte(`{"name":"A"}`)}, DeadLetter{Error: "400", Sample: []byte(`{"name":"B"}`)}
	if one.Fingerprint(Entity{}) == other.Fingerprint(Entity{}) {
		t.Error("two errors that differ only in the response have one fingerprint")
	}
}
