package source

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// hostPermits records the host of each call.
type hostPermits struct {
	testPermits
	mu    sync.Mutex
	hosts map[string]string // host of each call, by document
}

func (h *hostPermits) Acquire(ctx context.Context, c Call) (Permit, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hosts[c.Document] = c.Host
	return h.testPermits.Acquire(ctx, c)
}

// A document with its own base URL is fetched from its host, with the credential. Its redirects stay
// below its own base URL.
func TestDocument_HasItsOwnBaseURL(t *testing.T) {
	var mu sync.Mutex
	var calls []string
	redirect := ""
	record := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, r.URL.Path+" "+r.Header.Get("X-Api-Key"))
		if strings.HasSuffix(r.URL.Path, "/account") && redirect != "" {
			w.Header().Set("Location", redirect)
			w.WriteHeader(http.StatusFound)
			return
		}
		_, _ = w.Write([]byte(`{"host":"` + r.Host + `"}`))
	}
	first, second := httptest.NewServer(http.HandlerFunc(record)), httptest.NewServer(http.HandlerFunc(record))
	defer first.Close()
	defer second.Close()
	s := testSource(t, first.URL+"/v1", func(c *Config) {
		f := c.Facets["character"]
		f.Documents = map[string]Document{"here": {Path: "/game"}, "there": {BaseURL: second.URL + "/riot/", Path: "/account"}}
		c.Facets["character"] = f
	})
	hosts := map[string]string{"here": strings.TrimPrefix(first.URL, "http://"), "there": strings.TrimPrefix(second.URL, "http://")}
	for to, class := range map[string]Class{"": OK, "/riot/moved": OK, "/v1/moved": Permanent, "/elsewhere": Permanent, first.URL + "/v1/moved": Permanent} {
		redirect, calls = to, nil
		permits := &hostPermits{hosts: map[string]string{}}
		a, err := fetch(t, t.Context(), s, permits)
		if err != nil {
			t.Fatal(err)
		}
		o := s.Read(a, time.Now())
		if o.Class != class {
			t.Errorf("redirect to %q: got class %s (%v), want %s", to, o.Class, o.Err, class)
		}
		mu.Lock()
		for _, call := range calls {
			if path, credential, _ := strings.Cut(call, " "); credential != "secret" || (path != "/v1/game" && path != "/riot/account" && path != "/riot/moved") {
				t.Errorf("redirect to %q: got the call %q, want a known path and the credential", to, call)
			}
		}
		mu.Unlock()
		for document, host := range hosts {
			if got := permits.hosts[document]; got != host && class == OK {
				t.Errorf("host of the call for %s: got %q, want %q", document, got, host)
			}
		}
		if o.Class == OK {
			if want := `{"here":{"host":"` + hosts["here"] + `"},"there":{"host":"` + hosts["there"] + `"}}`; string(o.Content.Bytes) != want {
				t.Errorf("content: got %s, want %s", o.Content.Bytes, want)
			}
			o.Content.Release()
		}
	}
}
