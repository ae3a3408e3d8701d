package source

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestNew_RejectsCredentialWithoutHeader(t *testing.T) {
	for _, bad := range []string{"hunter2\n", "hunter2\r\nHost: x", "\x00hunter2", "hunter2\x7f"} {
		config := testSource(t, "http://upstream.example", nil).config
		if _, err := New("test", config, map[string]string{"": bad}, 1); err == nil || !strings.Contains(err.Error(), "line break") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New: got error %v", err)
		}
		s := testSource(t, "http://upstream.example", nil)
		if err := s.SetCredential("", bad); err == nil || !strings.Contains(err.Error(), "line break") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("SetCredential: got error %v", err)
		}
		if got := s.credentials.secrets[""].current().text; got != "secret" {
			t.Errorf("got credential %q after a rejected value, want the previous one", got)
		}
		config.Auth.Header = ""
		if s, err := New("test", config, nil, 1); err != nil || s.SetCredential("", "hunter2") == nil {
			t.Errorf("credential without a header: got error %v", err)
		}
	}
}

func TestSetCredential_DuringCalls(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.Header.Get("X-Api-Key")]++
		_, sent := r.Header["X-Api-Key"]
		mu.Unlock()
		if sent != (r.Header.Get("X-Api-Key") != "") {
			t.Error("got an empty credential header, want none")
		}
		_, _ = w.Write([]byte("{}"))
	})
	s := testSource(t, url, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if _, err := fetch(t, t.Context(), s, &testPermits{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, next := range []string{"second", "", "third"} {
		wg.Go(func() {
			if err := s.SetCredential("", next); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for got := range seen {
		if got != "secret" && got != "second" && got != "" && got != "third" {
			t.Errorf("got credential %q, which was never set", got)
		}
	}
	if err := s.SetCredential("", "last"); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(t, t.Context(), s, &testPermits{}); err != nil || seen["last"] != 1 {
		t.Errorf("after the change: got credentials %v, error %v", seen, err)
	}
}

func TestAuthHeader_CredentialIsNeverLogged(t *testing.T) {
	const secret = "hunter2-Zürich" // contains a character outside of ASCII
	handlers := map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"not JSON": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("<html>"))
		},
		"elsewhere": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://elsewhere.example/")
			w.WriteHeader(http.StatusFound)
		},
		"cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"late":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for name, handler := range handlers {
		s := testSource(t, serve(t, handler), func(c *Config) { c.Timeout = 50 * time.Millisecond })
		if err := s.SetCredential("", secret); err != nil {
			t.Fatal(err)
		}
		a, err := fetch(t, t.Context(), s, &testPermits{})
		if err != nil {
			t.Fatal(err)
		}
		o := s.Read(a, time.Now())
		if o.Err == nil {
			t.Errorf("%s: got no error, so the test checks nothing", name)
		}
		logger.Info("fetched", "answer", name, "err", o.Err, "outcome", o, "source", s, "config", s.config, "plan", a.plan)
		fmt.Fprintf(&log, "%v %+v %#v", s, s, s)
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log contains the credential: %s", log.String())
	}
}

func TestFetch_SendsCurrentCredential(t *testing.T) {
	var key string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		key = r.Header.Get("X-Api-Key")
		_, _ = w.Write([]byte("{}"))
	})
	s := testSource(t, url, nil)
	// The credential changes while the call waits in Spend. The request must contain the new value.
	if _, err := fetch(t, t.Context(), s, &testPermits{onSpend: func(context.Context) error { return s.SetCredential("", "renewed") }}); err != nil {
		t.Fatal(err)
	}
	if key != "renewed" {
		t.Errorf("got credential %q, want the current one", key)
	}
}

func TestCredentialKeys_AreCaseSensitive(t *testing.T) {
	for keys, want := range map[string]string{"acme/.*": "", "(?i)acme/.*": "staff"} {
		c, err := newCredentials([]Credential{
			{Name: "acme", SecretEnv: "A", Keys: keys, Visibility: "staff"},
			{Name: "all", SecretEnv: "B"},
		}, Auth{Header: "X-Api-Key"}, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := c.forKey("acme/x"); got != "staff" {
			t.Errorf("keys %q, acme/x: got visibility %q, want staff", keys, got)
		}
		if _, got := c.forKey("ACME/x"); got != want {
			t.Errorf("keys %q, ACME/x: got visibility %q, want %q", keys, got, want)
		}
	}
}
