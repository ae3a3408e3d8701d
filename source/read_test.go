package source

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

func gzipped(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// read passes responses to Read as if they had been fetched.
func read(t testing.TB, s *Source, responses ...response) Outcome {
	t.Helper()
	for i := range responses {
		if responses[i].header == nil {
			responses[i].header = http.Header{}
		}
	}
	p, err := s.Plan(Request{Facet: "character", Key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return s.Read(&Responses{plan: p, responses: responses}, time.Unix(1_800_000_000, 0))
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

var compressed = header("Content-Encoding", "gzip", "Content-Type", "application/json")

func TestRead_IgnoresTransferEncoding(t *testing.T) {
	s := testSource(t, "http://upstream.example", nil)
	const text = ` {"b": 2, "a": 1} `
	plain := read(t, s, response{status: 200, body: []byte(text)})
	packed := read(t, s, response{status: 200, header: compressed, body: gzipped(t, text)})
	const want = `{"doc":{"a":1,"b":2}}`
	if plain.Class != OK || packed.Class != OK || string(plain.Content.Bytes) != want || string(packed.Content.Bytes) != want {
		t.Fatalf("got plain %+v and compressed %+v", plain, packed)
	}
	if plain.Content.Hash != packed.Content.Hash {
		t.Error("equal content has different hashes")
	}
	packed.Content.Release()
	packed.Content.Release() // a second Release has no effect
	if other := read(t, s, response{status: 200, body: []byte(`{"a":1,"b":3}`)}); other.Content.Hash == plain.Content.Hash {
		t.Error("different content has equal hashes")
	}
	if string(plain.Content.Bytes) != want {
		t.Errorf("content changed before its release: %s", plain.Content.Bytes)
	}
}

func TestRead_IgnoredPathsKeepHash(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) {
		f := c.Facets["character"]
		f.Ignore = []string{"*.date"}
		c.Facets["character"] = f
	})
	one := read(t, s, response{status: 200, body: []byte(`{"v":1,"date":"2026-01-27"}`)})
	two := read(t, s, response{status: 200, body: []byte(`{"date":null,"v":1}`)})
	none := read(t, s, response{status: 200, body: []byte(`{"v":1}`)})
	if one.Content.Hash != two.Content.Hash || one.Content.Hash != none.Content.Hash {
		t.Error("an ignored path changed the hash")
	}
	if string(one.Content.Bytes) != `{"doc":{"date":"2026-01-27","v":1}}` {
		t.Errorf("got content %s", one.Content.Bytes)
	}
	plain := testSource(t, "http://upstream.example", nil)
	if v := read(t, plain, response{status: 200, body: []byte(`{}`)}).Content.ExtractVersion; v == one.Content.ExtractVersion || v < 0 {
		t.Error("different ignore settings have the same extract version")
	}
}

func TestRead_BadContentHasSample(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) { c.MaxBody = 1000 })
	bomb := gzipped(t, `"`+strings.Repeat("a", 1<<20)+`"`)
	for name, c := range map[string]struct {
		response response
		want     Class
		mention  string
		sample   string
	}{
		"HTML": {
			response{status: 200, header: header("Content-Type", "text/html"), body: []byte("<html>Sorry</html>")},
			BadContent, `content type "text/html"`, "<html>Sorry</html>",
		},
		"cut off":       {response{status: 200, body: []byte(`{"a":`)}, BadContent, "byte 5", `{"a":`},
		"empty":         {response{status: 200}, BadContent, "unexpected end", ""},
		"a bomb":        {response{status: 200, header: compressed, body: bomb}, BadContent, "maxBody", `"aaa`},
		"too large":     {response{status: 200, body: []byte(`"aaa`), err: ErrOversized}, BadContent, "maxBody", `"aaa`},
		"broken gzip":   {response{status: 200, header: compressed, body: gzipped(t, "{}")[:15]}, Transient, "gzip", "{}"},
		"no gzip":       {response{status: 200, header: compressed, body: []byte("{}")}, Transient, "gzip", ""},
		"odd encoding":  {response{status: 200, header: header("Content-Encoding", "br"), body: []byte("x")}, Transient, `"br"`, "x"},
		"a 304":         {response{status: 304}, BadContent, "unconditional request", ""},
		"a lost 429":    {response{status: 429, body: []byte("{"), err: errors.New("reset by peer")}, Quota, "reset", ""},
		"a lost body":   {response{status: 200, body: []byte("{"), err: errors.New("reset by peer")}, Transient, "reset", ""},
		"a 404":         {response{status: 404, header: compressed, body: gzipped(t, "not here")}, NotFound, "404 Not Found", "not here"},
		"a 500 of HTML": {response{status: 500, body: []byte("<html>")}, Transient, "500", "<html>"},
	} {
		o := read(t, s, c.response)
		if o.Class != c.want || o.Err == nil || !strings.Contains(o.Err.Error(), c.mention) || !strings.HasPrefix(string(o.Sample), c.sample) ||
			(c.sample == "" && len(o.Sample) > 0) || o.Content != nil || o.Status != c.response.status && o.Status != 0 {
			t.Errorf("%s: got %s (%v), sample %.20q", name, o.Class, o.Err, o.Sample)
		}
		if errors.Is(o.Err, ErrOversized) != strings.Contains(c.mention, "maxBody") {
			t.Errorf("%s: error %v: wrong result of errors.Is(err, ErrOversized)", name, o.Err)
		}
		if len(o.Sample) > maxSampleBytes {
			t.Errorf("%s: got a sample of %d bytes", name, len(o.Sample))
		}
	}
}

func TestRead_DropsUnstorableValidator(t *testing.T) {
	s := testSource(t, "http://upstream.example", nil)
	for etag, want := range map[string]string{
		`W/"v1"`: `W/"v1"`, "\"caf\xe9\"": "", "\"a\x01\"": "", "\"\x7f\"": "", `"` + strings.Repeat("x", 1<<10) + `"`: "",
	} {
		o := read(t, s, response{status: 200, header: header("Etag", etag, "Last-Modified", etag), body: []byte("{}")})
		if o.Class != OK || o.Validator != (Validator{want, want}) {
			t.Errorf("validator %q: got %+v", etag, o.Validator)
		}
	}
}

func TestRead_MostSevereDocumentDecides(t *testing.T) {
	s := testSource(t, "http://upstream.example", threeDocuments)
	ok := response{status: 200, body: []byte("{}")}
	for _, c := range []struct {
		statuses []int
		want     Class
	}{
		{[]int{200, 200, 200}, OK},
		{[]int{404, 200, 200}, NotFound},
		{[]int{404, 500, 200}, Transient}, // the failure of one document is more severe than not-found
		{[]int{500, 429, 404}, Quota},
		{[]int{200, 401, 429}, AuthRefused},
		{[]int{422, 404, 204}, BadContent},
	} {
		var responses []response
		for _, status := range c.statuses {
			one := ok
			one.status = status
			responses = append(responses, one)
		}
		if o := read(t, s, responses...); o.Class != c.want {
			t.Errorf("%v: got %s, want %s", c.statuses, o.Class, c.want)
		}
	}
	unsent := response{err: errUseless}
	if o := read(t, s, unsent, response{status: 404}, unsent); o.Class != NotFound {
		t.Errorf("unsent documents: got %s (%v)", o.Class, o.Err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(200, "gzip", []byte("\x1f\x8b\x08"), "1")
	f.Add(200, "", []byte(`{"a":[1,2,{"date":null}]}`), "")
	f.Add(429, "identity", []byte("slow down"), "Fri, 15 Jan 2027 08:00:30 GMT")
	s := testSource(f, "http://upstream.example", func(c *Config) { c.MaxBody = 1 << 16 })
	f.Fuzz(func(t *testing.T, status int, encoding string, body []byte, after string) {
		o := read(t, s, response{status: status, body: body, header: header("Content-Encoding", encoding, "Retry-After", after)})
		if (o.Class == OK) != (o.Content != nil) || (o.Class != OK && o.Class != NotModified) != (o.Err != nil) {
			t.Fatalf("got outcome %+v", o)
		}
		if o.RetryAfter < 0 || o.RetryAfter > 24*time.Hour || len(o.Sample) > maxSampleBytes {
			t.Fatalf("got outcome %+v", o)
		}
		if o.Content != nil {
			o.Content.Release()
		}
	})
}

func TestFetch_ValidatorNeedsConditionalFacet(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v2"`)
		w.Header().Set("Last-Modified", "Tue, 27 Jan 2026 12:00:00 GMT")
		if r.Header.Get("If-None-Match") == `"v2"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write([]byte("{}"))
	})
	for conditional, want := range map[bool]Class{true: NotModified, false: OK} {
		s := testSource(t, url, func(c *Config) {
			f := c.Facets["character"]
			f.Conditional = conditional
			c.Facets["character"] = f
		})
		p, err := s.Plan(Request{Facet: "character", Key: "a", Validator: Validator{ETag: `"v2"`}})
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Fetch(t.Context(), p, &testPermits{})
		if err != nil {
			t.Fatal(err)
		}
		o := s.Read(a, time.Now())
		if o.Class != want || (want == OK && o.Validator != Validator{`"v2"`, "Tue, 27 Jan 2026 12:00:00 GMT"}) {
			t.Errorf("conditional %v: got outcome %+v", conditional, o)
		}
	}
}
