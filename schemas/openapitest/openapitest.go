// Package openapitest checks HTTP exchanges of tests against the OpenAPI document.
package openapitest

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/freshet/freshet/schemas"
)

// router finds the operation of a request. The document is read only once in a process, because
// reading it takes 0.1 s with the race detector.
var router = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(schemas.OpenAPI)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.PlainBodyDecoder)
	doc.Servers = nil // requests of tests may go to any host
	return gorillamux.NewRouter(doc)
})

// Exchange is a request and its response. Response is the body without its content encoding.
type Exchange struct {
	Request  *http.Request
	Body     string
	Status   int
	Header   http.Header
	Response string
}

// Check fails the test if the response does not fit the OpenAPI document. If the response's status
// is below 300, the request must fit too. Check reports whether the document has the request's
// operation. If not, it checks nothing.
func Check(t testing.TB, e Exchange) (found bool) {
	t.Helper()
	r, err := router()
	if err != nil {
		t.Fatalf("the OpenAPI document: %v", err)
	}
	route, params, err := r.FindRoute(e.Request)
	if err != nil {
		return false
	}
	request := e.Request.Clone(t.Context())
	request.Body = io.NopCloser(strings.NewReader(e.Body))
	header := e.Header.Clone()
	header.Del("Content-Encoding")
	options := &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	input := &openapi3filter.RequestValidationInput{Request: request, PathParams: params, Route: route, Options: options}
	if e.Status < 300 {
		if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil {
			t.Errorf("%s %s: got status %d, but the request does not fit the OpenAPI document: %v", request.Method, request.URL, e.Status, err)
		}
	}
	if err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: e.Status, Header: header, Body: io.NopCloser(strings.NewReader(e.Response)), Options: options,
	}); err != nil {
		t.Errorf("%s %s: the response does not fit the OpenAPI document: %v\n%s", request.Method, request.URL, err, e.Response)
	}
	return true
}
