package app

import (
	_ "embed" // embeds the page in the variable healthHTML
	"html/template"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/freshet/freshet/schemas"
)

// healthHTML is the template of the page. It contains no script, and loads nothing.
//
//go:embed health.html
var healthHTML string

var (
	healthPage    = template.Must(template.New("health").Parse(healthHTML))
	healthPageCSP = schemas.StyleOnlyCSP([]byte(healthHTML))
)

// writePage writes the report as an HTML page.
func (r healthReport) writePage(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", healthPageCSP)
	w.WriteHeader(status)
	page := struct {
		healthReport
		Details *healthDetails // a named field, because a template can't read the embedded pointer
	}{r, r.healthDetails}
	_ = healthPage.Execute(w, page) // Execute returns an error only if the client has disconnected
}

// prefersHTML reports whether the client prefers HTML to JSON by the header Accept (RFC 9110, section
// 12.5.1). Elements that are not valid have no effect. JSON is the default.
func prefersHTML(r *http.Request) bool {
	quality := map[string]float64{}
	for element := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		mediaType, parameters, err := mime.ParseMediaType(element)
		if err != nil {
			continue
		}
		quality[mediaType] = 1
		if q, ok := parameters["q"]; ok {
			quality[mediaType], _ = strconv.ParseFloat(q, 64) // an invalid number counts as 0
		}
	}
	of := func(ranges ...string) float64 {
		for _, mediaType := range ranges {
			if q, ok := quality[mediaType]; ok {
				return q
			}
		}
		return 0
	}
	return of("text/html", "text/*", "*/*") > of("application/json", "application/*", "*/*")
}
