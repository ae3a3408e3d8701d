package source

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// topSecret is a credential that is written differently in a URL, in JSON and in base64.
const topSecret = `Top/S<e>&cr"et+42 Zürich\=`

// redactionSource returns a source whose credential has the given value, and a function that reads
// a response with the given body.
func redactionSource(t testing.TB, auth Auth, value string, change ...func(*Facet)) (*Source, func(body string) Outcome) {
	t.Helper()
	s := testSource(t, "http://upstream.example", func(c *Config) {
		c.Auth = auth
		f := c.Facets["character"]
		for _, one := range change {
			one(&f)
		}
		c.Facets["character"] = f
	})
	if err := s.SetCredential("", value); err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan(Request{Facet: "character", Key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return s, func(body string) Outcome {
		return s.Read(&Responses{plan: p, responses: []response{{status: 200, header: http.Header{}, body: []byte(body)}}}, time.Now())
	}
}

// inJSON returns a string as different JSON encoders write it, by the encoder's name.
func inJSON(text string) map[string]string {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
	_ = e.Encode(text)
	var all strings.Builder
	for _, r := range text {
		fmt.Fprintf(&all, `\u%04x`, r)
	}
	without := strings.Trim(strings.TrimSpace(plain.String()), `"`)
	return map[string]string{
		"plain": without, "HTML escaped": jsonEscape(text), "slashes escaped": strings.ReplaceAll(without, "/", `\/`), "all escaped": all.String(),
	}
}

func TestRedact_RemovesCredentialFromContent(t *testing.T) {
	written := map[string]string{
		"raw": topSecret, "percent-encoded": percentEncode(topSecret), "percent-encoded in lower case": percentHex.ReplaceAllStringFunc(percentEncode(topSecret), strings.ToLower),
		"as a form": url.QueryEscape(topSecret), "as a path": url.PathEscape(topSecret), "base64": base64.StdEncoding.EncodeToString([]byte(topSecret)),
		"base64 for URLs": base64.RawURLEncoding.EncodeToString([]byte(topSecret)),
	}
	for travels, auth := range map[string]Auth{"in the query": {Query: "api_key"}, "in a header": {Header: "Authorization", Prefix: "Bearer "}} {
		_, read := redactionSource(t, auth, topSecret)
		for form, text := range written {
			for how, quoted := range inJSON(text) {
				for where, body := range map[string]string{
					"a value":  `{"a":1,"links":{"self":"https://x/feed?api_key=` + quoted + `&b=1"},"z":[2]}`,
					"a name":   `{"a":1,"` + quoted + `":2}`,
					"the body": `"` + quoted + `"`,
					"twice":    `["` + quoted + `x` + quoted + `"]`,
				} {
					o := read(body)
					what := fmt.Sprintf("%s, %s, %s, %s", travels, form, how, where)
					if o.Class != OK {
						t.Fatalf("%s: got %s (%v), want ok", what, o.Class, o.Err)
					}
					want := 1
					if where == "twice" {
						want = 2
					}
					if got := strings.Count(string(o.Content.Bytes), "REDACTED"); got != want || o.Redacted != want {
						t.Errorf("%s: got %d times REDACTED and %d counted in %s, want %d", what, got, o.Redacted, o.Content.Bytes, want)
					}
					if !json.Valid(o.Content.Bytes) || strings.Contains(string(o.Content.Bytes), "42") || strings.Contains(string(o.Content.Bytes), text) {
						t.Errorf("%s: got %s", what, o.Content.Bytes)
					}
					o.Content.Release()
				}
			}
		}
	}
}

func TestRedact_KeepsContentWithoutCredential(t *testing.T) {
	_, read := redactionSource(t, Auth{Query: "api_key"}, "123456")
	for body, want := range map[string]string{
		`{"n":91234567}`:           `{"doc":{"n":91234567}}`, // a number is replaced only if it equals the credential
		`{"n":123456}`:             `{"doc":{"n":"REDACTED"}}`,
		`[123456,true,null,"a"]`:   `{"doc":["REDACTED",true,null,"a"]}`,
		`"\"123456\\"`:             `{"doc":"\"REDACTED\\"}`,
		`{"a":"12345","b":"6"}`:    `{"doc":{"a":"12345","b":"6"}}`,
		`{"a":"\\","b":"x123456"}`: `{"doc":{"a":"\\","b":"xREDACTED"}}`,
	} {
		o := read(body)
		if o.Class != OK || string(o.Content.Bytes) != want {
			t.Errorf("%s: got %s (%v) %s, want %s", body, o.Class, o.Err, o.Content.Bytes, want)
		}
		o.Content.Release()
	}
	_, read = redactionSource(t, Auth{Query: "api_key"}, "short")
	if o := read(`"short"`); string(o.Content.Bytes) != `{"doc":"short"}` {
		t.Errorf("credential of 5 bytes: got %s, want it unchanged", o.Content.Bytes)
	}
}

func TestRedact_HashesReplacement(t *testing.T) {
	options := func(f *Facet) { f.Ignore, f.Select = []string{"doc.at"}, []string{"doc.at", "doc.links", "doc.z"} }
	_, read := redactionSource(t, Auth{Query: "api_key"}, topSecret, options)
	body := func(key, at string) string {
		quoted, _ := json.Marshal(key)
		return `{"z":1,"dropped":` + string(quoted) + `,"links":[` + string(quoted) + `],"at":"` + at + `"}`
	}
	first, plain, later := read(body(topSecret, "now")), read(body("REDACTED", "now")), read(body(topSecret, "much later"))
	if first.Content.Hash != plain.Content.Hash || string(first.Content.Bytes) != string(plain.Content.Bytes) {
		t.Errorf("got %s, want the bytes and hash of %s", first.Content.Bytes, plain.Content.Bytes)
	}
	if later.Content.Hash != first.Content.Hash {
		t.Errorf("an ignored member changed the hash: %s", later.Content.Bytes)
	}
	if first.Redacted != 1 {
		t.Errorf("got %d replacements, want 1, only in selected values", first.Redacted)
	}
}

func TestRedact_RemovesPreviousCredential(t *testing.T) {
	s, read := redactionSource(t, Auth{Query: "api_key"}, "the-old-credential")
	if err := s.SetCredential("", "the-new-credential"); err != nil {
		t.Fatal(err)
	}
	if o := read(`["the-old-credential","the-new-credential"]`); string(o.Content.Bytes) != `{"doc":["REDACTED","REDACTED"]}` {
		t.Errorf("got %s, want both replaced", o.Content.Bytes)
	}
}

func TestRedact_RemovesCredentialFromPages(t *testing.T) {
	b := &pagedUpstream{items: 3, respond: func(w http.ResponseWriter, r *http.Request, page int) bool {
		if page == 1 {
			w.Header().Set("Link", "<"+r.URL.Path+"?page=2>; rel=next")
		}
		_, _ = fmt.Fprintf(w, `[{"self":%q}]`, r.Header.Get("X-Api-Key"))
		return true
	}}
	s := testSource(t, serve(t, b.ServeHTTP), documentOf(Document{Path: "/issues", Paging: &Paging{Link: true}}))
	if err := s.SetCredential("", "hunter2-and-more"); err != nil {
		t.Fatal(err)
	}
	a, err := fetch(t, t.Context(), s, &testPermits{})
	if err != nil {
		t.Fatal(err)
	}
	o := s.Read(a, time.Now())
	if o.Class != OK || o.Redacted != 2 || strings.Contains(string(o.Content.Bytes), "hunter2") {
		t.Errorf("got %s (%v), %d replaced in %s, want 2", o.Class, o.Err, o.Redacted, o.Content.Bytes)
	}
}

func TestRedact_RemovesCredentialFromOutcome(t *testing.T) {
	s, _ := redactionSource(t, Auth{Query: "api_key"}, "hunter2-and-more")
	p, err := s.Plan(Request{Facet: "character", Key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	read := func(status int, header http.Header, body string) Outcome {
		return s.Read(&Responses{plan: p, responses: []response{{status: status, header: header, body: []byte(body)}}}, time.Now())
	}
	o := read(200, http.Header{"Etag": {`"hunter2-and-more"`}, "Last-Modified": {"hunter2-and-more"}}, "{}")
	if o.Validator != (Validator{}) {
		t.Errorf("got the validator %+v, want none", o.Validator)
	}
	// If the end of the sample cuts a credential in two, the first half must not stay in the
	// sample.
	o = read(400, http.Header{"Content-Type": {"text/hunter2-and-more"}}, strings.Repeat("x", maxSampleBytes-8)+"hunter2-and-more")
	if strings.Contains(string(o.Sample), "hunter2") || len(o.Sample) > maxSampleBytes {
		t.Errorf("got the sample …%s of %d bytes, want no credential", o.Sample[len(o.Sample)-20:], len(o.Sample))
	}
	if strings.Contains(o.SampleType, "hunter2") {
		t.Errorf("got the type %s, want no credential", o.SampleType)
	}
}

func TestSecretForm_AgreesWithBytesContains(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	word := func(n int) []byte {
		out := make([]byte, n)
		for i := range out {
			out[i] = "Qa%"[rng.IntN(3)]
		}
		return out
	}
	for range 20_000 {
		text, f := word(rng.IntN(40)), newForm(string(word(6+rng.IntN(3))))
		if got, want := f.in(text), bytes.Contains(text, f.text); got != want {
			t.Fatalf("%q in %q: got %v, want %v", f.text, text, got, want)
		}
	}
}

func TestContainsCredential_AllocatesNothing(t *testing.T) {
	s, _ := redactionSource(t, Auth{Query: "api_key"}, topSecret)
	text := bytes.Repeat([]byte(`{"name":"유","level":280}`), 10_000)
	if got := testing.AllocsPerRun(10, func() { s.credentials.containsCredential(text) }); got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}

// BenchmarkContainsCredential searches 246 kB of content for the credential.
func BenchmarkContainsCredential(b *testing.B) {
	for name, value := range map[string]string{"letters and digits": "live_8c1f3a5b7d9e0f2a4c6e8b1d3f5a7c9e", "every form differs": topSecret} {
		b.Run(name, func(b *testing.B) {
			s, _ := redactionSource(b, Auth{Query: "api_key"}, value)
			text := bytes.Repeat([]byte(`{"item_name":"아케인셰이드 세이지","item_icon":"https://open.api.nexon.com/static/maplestory/item/icon/KEPCJBMD"},`), 2200)
			text = text[:246_000]
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if s.credentials.containsCredential(text) {
					b.Fatal("found a credential in content without one")
				}
			}
		})
	}
}

func TestRedactURL_HidesSecretsOfAnyOrigin(t *testing.T) {
	s, _ := redactionSource(t, Auth{Header: "X-Key"}, topSecret)
	for name, c := range map[string]struct{ given, want string }{
		"nothing secret":    {"https://a.example/v1/items?page=2&id=a%20b", "https://a.example/v1/items?page=2&id=a%20b"},
		"user":              {"https://user:password@a.example/v1", "https://a.example/v1"},
		"credential":        {"https://a.example/v1?id=" + url.QueryEscape(topSecret), "https://a.example/v1?id=REDACTED"},
		"credential (path)": {"https://a.example/" + url.PathEscape(topSecret) + "/v1", "https://a.example/REDACTED/v1"},
		"signed link":       {"https://a.example/v1?page=2&X-Amz-Signature=abc&sig=d&Expires=3", "https://a.example/v1?page=2&X-Amz-Signature=REDACTED&sig=REDACTED&Expires=3"},
		"escaped name":      {"https://a.example/v1?api%5Fkey=abc", "https://a.example/v1?api%5Fkey=REDACTED"},
		"broken name":       {"https://a.example/v1?a%zz=abc", "https://a.example/v1?a%zz=REDACTED"},
		"repeated token":    {"https://a.example/v1?token=a&token=b&access_token=", "https://a.example/v1?token=REDACTED&token=REDACTED&access_token=REDACTED"},
	} {
		u, err := url.Parse(c.given)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := s.RedactURL(u); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	if got := s.RedactURL(nil); got != "" {
		t.Errorf("no URL: got %q, want an empty string", got)
	}
}
