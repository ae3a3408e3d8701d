package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
)

// contract serves the OpenAPI document of the service.
type contract struct {
	catalog       *catalog
	authenticator Authenticator
	limiter       ClientLimiter
}

// route registers the paths of the contract (the OpenAPI document) as YAML, as JSON and as an
// HTML page, and the page of the path /.
func (ct *contract) route(e *echo.Echo, methods []string) {
	e.Match(methods, "/openapi.yaml", func(c echo.Context) error {
		return ct.respond(c, "application/yaml", schemas.OpenAPI, yamlParameter)
	})
	e.Match(methods, "/openapi.json", func(c echo.Context) error {
		return ct.respond(c, "application/json", schemas.OpenAPIJSON, jsonParameter)
	})
	e.Match(methods, "/docs", func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", schemas.OpenAPIPageCSP)
		server := html.EscapeString(serverURL(c))
		return c.HTMLBlob(http.StatusOK, bytes.ReplaceAll(schemas.OpenAPIPage, []byte(schemas.OpenAPIServer), []byte(server)))
	})
	e.Match(methods, "/", func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		return c.HTML(http.StatusOK, indexPage)
	})
}

// indexPage is the page of the path /. It loads no scripts, styles or images, and has the same
// content for every client.
const indexPage = `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>freshet query service</title></head>
<body>
<h1>freshet query service</h1>
<dl>
<dt><a href="/v1">/v1</a></dt><dd>sources; <code>/v1/{source}</code> lists the facets, <code>/v1/{source}/{facet}/{key}</code> reads an entity</dd>
<dt><a href="/docs">/docs</a></dt><dd>the HTTP API as a page; as OpenAPI: <a href="/openapi.yaml">/openapi.yaml</a>, <a href="/openapi.json">/openapi.json</a></dd>
<dt><a href="/console">/console</a></dt><dd>pages for operators</dd>
<dt><a href="/livez">/livez</a>, <a href="/readyz">/readyz</a>, <a href="/healthz">/healthz</a></dt><dd>health</dd>
<dt><a href="/metrics">/metrics</a></dt><dd>Prometheus metrics, for administrators</dd>
</dl>
</body>
</html>
`

// serverURL returns the URL of this service as the client of the request sees it. It uses the
// request's Host header. If that is not a host name or an IP address with an optional port,
// serverURL returns schemas.OpenAPIServer.
func serverURL(c echo.Context) string {
	scheme := "http"
	if c.IsTLS() || c.Request().Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	host := c.Request().Host
	if !hostAndPort.MatchString(host) {
		return schemas.OpenAPIServer
	}
	return scheme + "://" + host
}

var hostAndPort = regexp.MustCompile(`^[0-9A-Za-z._-]+(:[0-9]+)?$|^\[[0-9A-Fa-f:.]+\](:[0-9]+)?$`)

// contractRequests is the number of requests that one download of the contract with sources counts
// as, because it takes about as long as ten reads.
const contractRequests = 10

// respond responds with the API contract (the OpenAPI document), which contains the URL of this
// service. For a client with the scope read it also contains the sources, facets and key patterns
// that the client may see. No client is rejected, because the contract itself is public.
func (ct *contract) respond(c echo.Context, contentType string, text []byte, parameter func(text []byte, name string) []byte) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	text = bytes.Replace(text, []byte(quoted(schemas.OpenAPIServer)), []byte(quoted(serverURL(c))), 1)
	client, err := ct.authenticator.Authenticate(c.Request(), c.RealIP())
	if err != nil || !client.May(access.Read) || ct.limiter.AllowRequests(client.Name, contractRequests) != nil {
		return c.Blob(http.StatusOK, contentType, text)
	}
	for _, p := range ct.catalog.pathParameters(client) {
		text = bytes.Replace(text, parameter(text, p.Name), []byte(" "+mustJSON(p)), 1)
	}
	return c.Blob(http.StatusOK, contentType, text)
}

// pathParameter is the OpenAPI definition of a path parameter of the contract.
type pathParameter struct {
	Name        string `json:"name"`
	In          string `json:"in"`
	Required    bool   `json:"required"`
	Description string `json:"description"`
	Schema      any    `json:"schema"`
	Example     string `json:"example,omitempty"`
}

// pathParameters returns the definitions of the parameters source, facet and key. They list the
// sources, facets and key patterns that the client may see. The result is nil if the client may see
// no source.
func (cat *catalog) pathParameters(client access.Client) []pathParameter {
	names := cat.visibleSources(client)
	if len(names) == 0 {
		return nil
	}
	var facets, ofSources, patterns []string
	for _, name := range names {
		of := cat.sources[name].FacetNames()
		ofSources = append(ofSources, fmt.Sprintf("- `%s`: `%s`", name, strings.Join(of, "`, `")))
		for _, facet := range of {
			f, _ := cat.sources[name].Facet(facet)
			patterns = append(patterns, fmt.Sprintf("- `%s/%s`: `%s`", name, facet, f.KeyPattern))
		}
		facets = append(facets, of...)
	}
	slices.Sort(facets)
	facets = slices.Compact(facets)
	type oneOf struct {
		Type string   `json:"type"`
		Enum []string `json:"enum"`
	}
	type length struct {
		Type string `json:"type"`
		Min  int    `json:"minLength"`
		Max  int    `json:"maxLength"`
	}
	return []pathParameter{
		{"source", "path", true, "A source of this service.", oneOf{"string", names}, names[0]},
		{"facet", "path", true, "A facet of the source:\n\n" + strings.Join(ofSources, "\n"), oneOf{"string", facets}, facets[0]},
		{
			"key", "path", true, "1 to 256 bytes of UTF-8 without control characters, percent-encoded as one path segment. The whole key matches the pattern of the facet:\n\n" +
				strings.Join(patterns, "\n"), length{"string", 1, 256}, "",
		},
	}
}

// yamlParameter returns the definition of a parameter (below components/parameters) in the YAML
// form of the contract. The result has neither the parameter's name nor the last line break.
func yamlParameter(text []byte, name string) []byte {
	_, rest, _ := bytes.Cut(text, []byte("\n    "+name+":\n      name: "+name+"\n      in: path\n"))
	if rest == nil {
		return nil
	}
	start := len(text) - len(rest) - len("\n      name: "+name+"\n      in: path\n")
	end := start + 1
	for end < len(text) {
		line, _, _ := bytes.Cut(text[end:], []byte("\n"))
		if !bytes.HasPrefix(line, []byte("      ")) {
			break
		}
		end += len(line) + 1
	}
	return text[start : end-1]
}

// jsonParameter returns the definition of a parameter (below components/parameters) in the JSON
// form of the contract.
func jsonParameter(text []byte, name string) []byte {
	var document struct {
		Components struct{ Parameters map[string]json.RawMessage }
	}
	if json.Unmarshal(text, &document) != nil {
		return nil
	}
	return document.Components.Parameters[name]
}

func quoted(text string) string { return mustJSON(text) }

func mustJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // no error is possible for plain fields
	}
	return string(text)
}
