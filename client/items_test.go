package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/problem"
)

var aCollection = Entity{"github", "issues", "golang/go"}

func TestItems_SendsTheRange(t *testing.T) {
	s := always(200, `{"items":[{"id":"7","version":3,"item":{"a":1}},{"id":"8","version":4,"deleted":true}],"next":"4.OA","more":true,"freshness":"STALE"}`)
	c := newTestClient(t, s, Options{})
	page, err := c.Items(t.Context(), aCollection, ItemRange{After: "1.a b", ChangedSince: time.Unix(0, 0), Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.last().URL.RequestURI(), "/v1/github/issues/golang%2Fgo/items?after=1.a+b&changedSince=1970-01-01T00%3A00%3A00Z&limit=2"; got != want {
		t.Errorf("path: got %s, want %s", got, want)
	}
	if len(page.Items) != 2 || string(page.Items[0].Content) != `{"a":1}` || !page.Items[1].Deleted || page.Next != "4.OA" || !page.More || page.Freshness != Stale {
		t.Errorf("page: got %+v", page)
	}
	if _, err := c.Items(t.Context(), aCollection, ItemRange{Limit: MaxItems + 1}); err == nil {
		t.Error("a limit above MaxItems: got no error")
	}
}

func TestItems_OtherResponses(t *testing.T) {
	for name, c := range map[string]struct {
		s         *service
		freshness Freshness
		code      problem.Code
	}{
		"updating":  {always(202, `{"freshness":"UPDATING"}`, "Retry-After", "7"), Updating, ""},
		"not found": {always(404, `{"freshness":"NOT_FOUND","code":"not-found","detail":"x"}`), NotFound, ""},
		"problem":   {always(400, `{"code":"bad-cursor","detail":"x"}`), "", problem.BadCursor},
		"no page":   {always(200, `{"freshness":"FRESH"}`), "", "unexpected"},
	} {
		page, err := newTestClient(t, c.s, Options{}).Items(t.Context(), aCollection, ItemRange{})
		p, isProblem := errors.AsType[*Problem](err)
		switch {
		case c.code == "unexpected" && err != nil && !isProblem:
		case c.code == "" && err == nil && page.Freshness == c.freshness:
		case isProblem && p.Code == c.code:
		default:
			t.Errorf("%s: got %+v, %v", name, page, err)
		}
	}
}

func TestAllItems_ReadsPageAfterPage(t *testing.T) {
	s := &service{answer: func(n int, r *http.Request, w http.ResponseWriter) {
		if n == 2 { // the first request of the second page fails
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"code":"store-unavailable","detail":"x"}`))
			return
		}
		page := 1
		if r.URL.Query().Has("after") {
			page = 2
		}
		_, _ = fmt.Fprintf(w, `{"items":[{"id":"%da","item":{}},{"id":"%db","item":{}}],"next":"n%d","more":%t}`, page, page, page, page == 1)
	}}
	c := newTestClient(t, s, Options{})
	var ids []string
	for i, err := range c.AllItems(t.Context(), aCollection, ItemRange{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, i.ID)
	}
	if got, want := strings.Join(ids, " "), "1a 1b 2a 2b"; got != want {
		t.Errorf("items: got %s, want %s", got, want)
	}
	for _, err := range c.AllItems(t.Context(), aCollection, ItemRange{}) {
		if err != nil {
			t.Error(err)
		}
		break // the caller ends the sequence after the first item
	}
}
