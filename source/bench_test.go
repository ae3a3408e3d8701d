package source

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/simulator"
)

// trueSize returns a compressed document with the shape and the size of a real response.
func trueSize(b *testing.B) []byte {
	b.Helper()
	s := simulator.New(simulator.Config{Seed: 1})
	defer s.Close()
	req := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/maplestory/v1/character/item-equipment?ocid=90f1a2b3", nil)
	req.Header.Set("Accept-Encoding", "gzip")
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, req)
	return rec.Body.Bytes()
}

func gunzip(b *testing.B, r *gzip.Reader, to *bytes.Buffer, body []byte) {
	b.Helper()
	to.Reset()
	if err := r.Reset(bytes.NewReader(body)); err != nil {
		b.Fatal(err)
	}
	if _, err := to.ReadFrom(r); err != nil {
		b.Fatal(err)
	}
}

// gjsonWalk writes the canonical form with gjson's functions. BenchmarkExtraction compares its
// speed with the parser of this package.
func gjsonWalk(out []byte, v gjson.Result) []byte {
	type member struct{ name, value gjson.Result }
	switch {
	case v.IsObject():
		var members []member
		v.ForEach(func(name, value gjson.Result) bool { members = append(members, member{name, value}); return true })
		slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name.Raw, b.name.Raw) })
		out = append(out, '{')
		for i, m := range members {
			if i > 0 {
				out = append(out, ',')
			}
			out = gjsonWalk(append(append(out, m.name.Raw...), ':'), m.value)
		}
		return append(out, '}')
	case v.IsArray():
		out = append(out, '[')
		n := 0
		v.ForEach(func(_, value gjson.Result) bool {
			if n > 0 {
				out = append(out, ',')
			}
			n++
			out = gjsonWalk(out, value)
			return true
		})
		return append(out, ']')
	}
	return append(out, v.Raw...)
}

// BenchmarkExtraction measures the worker's path from the compressed body of a real-sized
// response to the hash. For comparison it measures decompression alone, and other ways to produce
// the same canonical JSON.
func BenchmarkExtraction(b *testing.B) {
	body := trueSize(b)
	s := testSource(b, "http://upstream.example", func(c *Config) {
		f := c.Facets["character"]
		f.Ignore = []string{"*.date"}
		c.Facets["character"] = f
	})
	p, err := s.Plan(Request{Facet: "character", Key: "a"})
	if err != nil {
		b.Fatal(err)
	}
	responses := &Responses{plan: p, responses: []response{{status: 200, header: compressed, body: body}}}
	var r gzip.Reader
	var plain bytes.Buffer
	took := map[string]float64{}
	run := func(name string, do func(b *testing.B), against ...string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				do(b)
			}
			took[name] = b.Elapsed().Seconds() / float64(b.N)
			b.SetBytes(int64(plain.Len()))
			for _, other := range against {
				b.ReportMetric(took[name]/took[other], "×"+other)
			}
		})
	}
	run("gunzip", func(b *testing.B) { gunzip(b, &r, &plain, body) })
	run("gjson", func(b *testing.B) {
		gunzip(b, &r, &plain, body)
		if !gjson.ValidBytes(plain.Bytes()) {
			b.Fatal("document is not valid JSON")
		}
		gjsonWalk(nil, gjson.ParseBytes(plain.Bytes()))
	})
	run("encoding/json", func(b *testing.B) {
		gunzip(b, &r, &plain, body)
		var v any
		if err := json.Unmarshal(plain.Bytes(), &v); err != nil {
			b.Fatal(err)
		}
		if _, err := json.Marshal(v); err != nil {
			b.Fatal(err)
		}
	})
	run("ours", func(b *testing.B) {
		o := s.Read(responses, time.Time{})
		if o.Class != OK {
			b.Fatal(o.Err)
		}
		o.Content.Release()
	}, "gunzip", "gjson", "encoding/json")
}
