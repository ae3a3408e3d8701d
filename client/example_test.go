package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/problem"
)

// startService starts a server with the responses of a query service.
func startService() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const stored = `"snapshot":{"basic":{"level":7}},"freshness":"FRESH"`
		switch {
		case strings.HasSuffix(r.URL.Path, "/events"):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: 1.a\nevent: changed\ndata: {\"freshness\":\"FRESH\",\"etag\":\"W/\\\"a\\\"\"}\n\n")
		case r.Method == http.MethodPost:
			w.Header().Set("Retry-After", "40")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"status":429,"code":"cooldown","detail":"The entity was refreshed recently."}`)
		case r.URL.Query().Has("key"):
			_, _ = io.WriteString(w, `{"items":[{"key":"somebody","status":200,`+stored+`},{"key":"new","status":202,"freshness":"UPDATING"}]}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("ETag", `W/"a"`)
			_, _ = io.WriteString(w, "{"+stored+"}")
		}
	}))
}

func newClient(base string) *client.Client {
	c, err := client.New(base, client.Options{Token: client.Token{Value: "an API key"}})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

var somebody = client.Entity{Source: "nexon", Facet: "character", Key: "somebody"}

func ExampleGetAs() {
	service := startService()
	defer service.Close()

	type character struct {
		Basic struct{ Level int } // field for the document "basic" of the facet
	}
	result, err := client.GetAs[character](context.Background(), newClient(service.URL), somebody, client.Wait(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	switch result.Freshness {
	case client.Fresh, client.Stale:
		fmt.Println(result.Freshness, result.Snapshot.Basic.Level)
	case client.Updating:
		fmt.Println("read again after", result.RetryAfter)
	default: // the remaining value is client.NotFound: the upstream has no such entity
		fmt.Println("no such character")
	}
	// Output: FRESH 7
}

func ExampleClient_GetMany() {
	service := startService()
	defer service.Close()

	items, err := newClient(service.URL).GetMany(context.Background(), "nexon", "character", []string{"somebody", "new"})
	if err != nil {
		log.Fatal(err)
	}
	for _, item := range items {
		fmt.Println(item.Key, item.Freshness)
	}
	// Output:
	// somebody FRESH
	// new UPDATING
}

func ExampleClient_Refresh() {
	service := startService()
	defer service.Close()

	_, err := newClient(service.URL).Refresh(context.Background(), somebody)
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Code == problem.Cooldown {
		fmt.Println("refreshed recently; try again after", p.After)
	}
	// Output: refreshed recently; try again after 40s
}

func ExampleClient_Watch() {
	service := startService()
	defer service.Close()

	c := newClient(service.URL)
	for event, err := range c.Watch(context.Background(), somebody) {
		if err != nil {
			log.Fatal(err)
		}
		if event.Type == client.Changed {
			result, err := c.Get(context.Background(), somebody)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(event.Type, string(result.Snapshot))
		}
		break // the example ends after one event; a real program usually follows the entity until its context ends
	}
	// Output: changed {"basic":{"level":7}}
}

// The issuer in this example accepts every renewal.
func ExampleOptions_renew() {
	service := startService()
	defer service.Close()

	c, err := client.New(service.URL, client.Options{
		Renew: func(context.Context) (client.Token, error) {
			// Call the issuer here. If it refuses, return an error that wraps client.ErrSignedOut.
			return client.Token{Value: "a token", Expires: time.Now().Add(time.Hour)}, nil
		},
		OnSignedOut: func() { log.Print("sign in again") },
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := c.Get(context.Background(), somebody)
	fmt.Println(result.Freshness, err)
	// Output: FRESH <nil>
}
