package admin_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
)

func ExampleAPI_Handler() {
	api := admin.API{
		Paths: map[string]map[string]admin.Handle{
			"/admin/v1/greeting": {http.MethodGet: func(*http.Request) (admin.Answer, error) {
				return admin.Answer{Body: map[string]string{"greeting": "hello"}}, nil
			}},
		},
		Explain: func(error) *problem.HTTPError { return nil },
		Log:     slog.New(slog.DiscardHandler),
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		w := httptest.NewRecorder()
		api.Handler().ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), method, "/admin/v1/greeting", nil))
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 {"greeting":"hello"}
	// 405 {"type":"urn:freshet:problem:method-not-allowed","title":"Method Not Allowed","status":405,"detail":"This path does not support the method. /openapi.yaml lists the methods.","code":"method-not-allowed"}
}
