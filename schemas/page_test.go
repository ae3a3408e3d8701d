package schemas

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"flag"
	"html"
	"html/template"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

var (
	//go:embed testdata/page.css
	pageStyle string
	//go:embed testdata/page.html.tmpl
	pageTemplate string
)

// pageOf renders the HTML page of an OpenAPI document.
func pageOf(text []byte) ([]byte, error) {
	d, err := readDocument(text)
	if err != nil {
		return nil, err
	}
	view, err := (&pager{document: d}).view()
	if err != nil {
		return nil, err
	}
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, view)
	return b.Bytes(), err
}

// update makes golden-file tests write the files that they compare.
var update = flag.Bool("update", false, "write the golden files")

func TestPage_MatchesDocument(t *testing.T) {
	page, err := pageOf(OpenAPI)
	if err != nil {
		t.Fatalf("render the page: %v", err)
	}
	const golden = "openapi.html"
	if *update {
		if err := os.WriteFile(golden, page, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(page, OpenAPIPage) {
		t.Errorf("schemas/%s is not the page of schemas/openapi.yaml; write it with: go test ./schemas -update, and look at it in a browser", golden)
	}
}

func TestOpenAPIJSON_MatchesDocument(t *testing.T) {
	compact, err := yaml.YAMLToJSON(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, compact, "", " "); err != nil {
		t.Fatal(err)
	}
	const golden = "openapi.json"
	if *update {
		if err := os.WriteFile(golden, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(text.Bytes(), OpenAPIJSON) {
		t.Errorf("schemas/%s is not the JSON of schemas/openapi.yaml; write it with: go test ./schemas -update", golden)
	}
}

// The expressions match everything in the page that a browser would follow, load or run.
var (
	ids     = regexp.MustCompile(` id="([^"]*)"`)
	anchors = regexp.MustCompile(` href="#([^"]*)"`)
	active  = regexp.MustCompile(`(?i)<(script|iframe|object|embed|link|img|form|base|svg)|<[^>]* (on[a-z]+|style|src)=|@import|url\(|javascript:`)
)

func sound(t *testing.T, page []byte) {
	t.Helper()
	there := map[string]bool{}
	for _, m := range ids.FindAllSubmatch(page, -1) {
		if there[string(m[1])] {
			t.Errorf("id %s: got it twice", m[1])
		}
		there[string(m[1])] = true
	}
	for _, m := range anchors.FindAllSubmatch(page, -1) {
		if !there[string(m[1])] {
			t.Errorf("link to #%s: no such id", m[1])
		}
	}
	if found := active.Find(page); found != nil {
		t.Errorf("the page holds %q, which its policy forbids", found)
	}
	if bytes.Count(page, []byte("<style>")) != 1 || bytes.Contains(page, []byte("ZgotmplZ")) {
		t.Error("the page's style is not one, or the template refused a value")
	}
}

func TestPage_RepeatsAListParameter(t *testing.T) {
	const want = "/v1/nexon/character?key=somebody&key=somebody-else"
	if !strings.Contains(html.UnescapeString(string(OpenAPIPage)), want) {
		t.Errorf("page: got no command with %s", want)
	}
}

func TestPage_HasNoExternalResources(t *testing.T) {
	page, err := pageOf(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	sound(t, page)
	sum := sha256.Sum256([]byte(pageStyle))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"
	if got := StyleOnlyCSP(page); !strings.HasPrefix(got, want) {
		t.Errorf("the policy is %s, want %s", got, want)
	}
}

func TestPage_ShowsAllSupportedFields(t *testing.T) {
	text, err := os.ReadFile("testdata/page.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := pageOf(text)
	if err != nil {
		t.Fatal(err)
	}
	sound(t, page)
	got := html.UnescapeString(string(page))
	for _, want := range []string{
		`<b>Access</b> <a href="#auth-token">token</a> with <code>read</code>, <code>write</code> or open to everyone`,
		`<b>Access</b> <a href="#auth-key">key</a> and <a href="#auth-token">token</a></p>`,
		`<b>Access</b> open to everyone</p>`,
		"HTTP authentication, bearer (opaque)", "A key in the header X-Key", `Authorization: Bearer $FRESHET_TOKEN`,
		`<p>A paragraph with <code>code</code>.</p><p class="item">one item that goes on</p><p class="item">another</p>`,
		`<code>text/event-stream</code> <span class="mark">stream</span>`,
		`curl -iN 'http://h/base/things/it%27s%2Fnot?since=2%26x'`,
		`-H "X-Key: $FRESHET_TOKEN"`, `-d '{"b": [1, {"z": null, "a": "it'\''s"}], "a": true}'`,
		`<em>any other name</em>`, `<em>names like ^x-</em>`, `the members of <a href="#schema-Base">Base</a>`, `if it is object`,
		`list of <a href="#schema-Base">Base</a> or null`, `integer, at least 0 or null`, `distinguished by <code>kind</code>`,
		`<span class="status sd">other</span> Any other status`, `<span class="status s4">4XX</span>`,
		`1 to 9 characters`, `several with commas between them`, `<script>alert(1)</script>`,
		`<dt><code>all:things</code></dt><dd>Everything</dd>`, `Example: small`, `id: 1`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("page: got no %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", got[strings.Index(got, "<body>"):])
	}
}

func TestPage_RejectsUnsupportedFields(t *testing.T) {
	for text, says := range map[string]string{
		"paths: {/x: {get: {callbacks: {}}}}":                                                                   "callbacks",
		"components: {schemas: {A: {if: {type: string}}}}":                                                      "if",
		"paths: {/x: {get: {responses: {'200': {$ref: '#/components/responses/gone'}}}}}":                       "responses/gone",
		"security: [{gone: []}]\ncomponents: {securitySchemes: {a: {type: mutualTLS}}}\npaths: {/x: {get: {}}}": "securitySchemes/gone",
	} {
		if _, err := pageOf([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
