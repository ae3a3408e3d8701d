package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// withTwoKeyGroups configures one credential for keys that begin with "a", and two credentials for
// keys that begin with "b".
func withTwoKeyGroups(c *Config) {
	c.Credentials = []Credential{
		{Name: "one", SecretEnv: "ONE", Keys: "a.*"},
		{Name: "two", SecretEnv: "TWO", Keys: "b.*", Visibility: "team"},
		{Name: "three", SecretEnv: "THREE", Keys: "b.*", Visibility: "team"},
	}
	c.Auth = Auth{Header: "Authorization", Prefix: "Bearer "}
}

// credentialPermits issues permits and records the calls. The function choose returns the
// credential for each permit.
type credentialPermits struct {
	testPermits
	choose func(Call) string
	mu     sync.Mutex
	calls  []Call
}

func (n *credentialPermits) Acquire(ctx context.Context, c Call) (Permit, error) {
	n.mu.Lock()
	n.calls = append(n.calls, c)
	n.mu.Unlock()
	p, err := n.testPermits.Acquire(ctx, c)
	if err != nil {
		return nil, err
	}
	return credentialPermit{p, n.choose(c)}, nil
}

type credentialPermit struct {
	Permit
	name string
}

func (c credentialPermit) Credential() string { return c.name }

func TestFetch_SendsCredentialNamedByPermit(t *testing.T) {
	var got string
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = w.Write([]byte("{}"))
	})
	config := testSource(t, at, nil).config
	withTwoKeyGroups(&config)
	s, err := New("test", config, map[string]string{"one": "1", "two": "2", "three": "3"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for key, want := range map[string]string{"a1": "[one]", "b1": "[two three]"} {
		for _, last := range []bool{false, true} {
			permits := &credentialPermits{choose: func(c Call) string {
				if last {
					return c.Credentials[len(c.Credentials)-1]
				}
				return c.Credentials[0]
			}}
			p, err := s.Plan(Request{Facet: "character", Key: key})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Fetch(t.Context(), p, permits); err != nil {
				t.Fatal(err)
			}
			c := permits.calls[0]
			if fmt.Sprint(c.Credentials) != want || c.Key != key || c.Facet != "character" || c.Document != "doc" || c.Method != http.MethodGet || c.Params["ocid"] != key {
				t.Errorf("%s: got call %+v for Acquire, want this key's call", key, c)
			}
			if secret := "Bearer " + s.credentials.secrets[permits.choose(c)].current().text; got != secret {
				t.Errorf("%s: got credential %q, want %q", key, got, secret)
			}
		}
	}
	if _, err := s.Plan(Request{Facet: "character", Key: "c1"}); !errors.Is(err, errNoCredential) {
		t.Errorf("key without a credential: got error %v, want errNoCredential", err)
	}
}

// replacedPermit is a permit that has expired before Spend. Spend replaces it by a permit for
// another credential.
type replacedPermit struct {
	Permit
	name string
}

func (r *replacedPermit) Credential() string { return r.name }

func (r *replacedPermit) Spend(ctx context.Context) error {
	r.name = "two"
	return r.Permit.Spend(ctx)
}

type replacingPermits struct{ testPermits }

func (r *replacingPermits) Acquire(ctx context.Context, c Call) (Permit, error) {
	p, err := r.testPermits.Acquire(ctx, c)
	return &replacedPermit{p, "one"}, err
}

func TestFetch_SendsCredentialOfSpentPermit(t *testing.T) {
	var got string
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("X-Api-Key")
		_, _ = w.Write([]byte("{}"))
	})
	config := testSource(t, at, nil).config
	config.Credentials = []Credential{{Name: "one", SecretEnv: "A"}, {Name: "two", SecretEnv: "B"}}
	s, err := New("test", config, map[string]string{"one": "1", "two": "2"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := fetch(t, t.Context(), s, &replacingPermits{}); err != nil || got != "2" {
		t.Errorf("got credential %q and error %v, want 2", got, err)
	}
}

func TestFetch_RejectsUnknownCredential(t *testing.T) {
	s := testSource(t, serve(t, func(http.ResponseWriter, *http.Request) { t.Error("got a request, want none") }), nil)
	b := &credentialPermits{choose: func(Call) string { return "another" }}
	a, err := fetch(t, t.Context(), s, b)
	if err != nil || b.unfinished.Load() != 0 {
		t.Fatalf("got error %v and %d calls without Finished, want none", err, b.unfinished.Load())
	}
	if o := s.Read(a, time.Now()); o.Class != Transient || !strings.Contains(o.Err.Error(), `credential "another"`) {
		t.Errorf("got outcome %+v, want transient that names the credential", o)
	}
}

func TestAuthQuery_ReplacesParameter(t *testing.T) {
	var got url.Values
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.Query()
		if got.Get("hop") == "" { // redirect the first request to its own URL plus hop=1
			w.Header().Set("Location", r.URL.Path+"?hop=1&"+r.URL.RawQuery)
			w.WriteHeader(http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("{}"))
	})
	s := testSource(t, at, func(c *Config) { c.Auth = Auth{Query: "key"} })
	for _, value := range []string{"a+b/c=&d e", "renewed", ""} {
		if err := s.SetCredential("", value); err != nil {
			t.Fatal(err)
		}
		if _, err := fetch(t, t.Context(), s, &testPermits{}); err != nil {
			t.Fatal(err)
		}
		want := []string{value}
		if value == "" {
			want = nil
		}
		if fmt.Sprint(got["key"]) != fmt.Sprint(want) || len(got["ocid"]) != 1 || len(got["date"]) != 1 {
			t.Errorf("credential %q: got query values %v", value, got)
		}
	}
}

func TestAuthQuery_CredentialIsNeverLogged(t *testing.T) {
	const secret = "hunter2-Zürich/=" // this secret is percent-encoded in a query
	handlers := map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, "%s was not found; key %s is wrong", r.RequestURI, r.URL.Query().Get("key"))
		},
		"elsewhere": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://elsewhere.example"+r.RequestURI)
			w.WriteHeader(http.StatusFound)
		},
		"malformed response": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://[::"+r.RequestURI)
			w.WriteHeader(http.StatusFound)
		},
		"not JSON": func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.RequestURI)) },
		"no HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, err = fmt.Fprintf(conn, "%s %s\r\n\r\n", r.URL.Query().Get("key"), r.RequestURI)
				err = errors.Join(err, conn.Close())
			}
			if err != nil {
				t.Error(err)
			}
		},
		"cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"late":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"again": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.RequestURI+"&x=1", http.StatusFound)
		},
	}
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for name, handler := range handlers {
		s := testSource(t, serve(t, handler), func(c *Config) { c.Timeout, c.Auth = 50*time.Millisecond, Auth{Query: "key"} })
		if err := s.SetCredential("", secret); err != nil {
			t.Fatal(err)
		}
		results := &resultRecorder{}
		a, err := fetch(t, t.Context(), s, results)
		if err != nil {
			t.Fatal(err)
		}
		o := s.Read(a, time.Now())
		if o.Err == nil {
			t.Errorf("%s: got no error, so the test checks nothing", name)
		}
		logger.Info("fetched", "answer", name, "err", o.Err, "sample", string(o.Sample), "outcome", o, "source", s, "config", s.config, "plan", a.plan, "ends", results.all)
		fmt.Fprintf(&log, "%v %+v %#v %v", s, s, s, a.plan.requests[0].url)
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log contains the credential: %s", log.String())
	}
	if !strings.Contains(log.String(), "key REDACTED is wrong") || !strings.Contains(log.String(), `malformed HTTP status code \"/v1/a`) {
		t.Error("no response repeats the credential, so the test checks nothing")
	}
}

// resultRecorder records the CallResult of each call.
type resultRecorder struct {
	testPermits
	all []CallResult
}

func (e *resultRecorder) Acquire(ctx context.Context, c Call) (Permit, error) {
	p, err := e.testPermits.Acquire(ctx, c)
	return recordingPermit{p, e}, err
}

type recordingPermit struct {
	Permit
	e *resultRecorder
}

func (h recordingPermit) Finished(e CallResult) {
	h.e.all = append(h.e.all, e)
	h.Permit.Finished(e)
}

func TestNew_RejectsInvalidAuth(t *testing.T) {
	config := testSource(t, "http://upstream.example", nil).config
	for want, auth := range map[string]Auth{
		"auth.query: ":  {Header: "x", Query: "y"},
		"auth.prefix: ": {Query: "y", Prefix: "Bearer "},
		"line break":    {Header: "x", Prefix: "Bearer\n"},
		"auth.header: ": {Header: "x y"},
	} {
		config.Auth = auth
		if _, err := New("test", config, nil, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got error %v", auth, err)
		}
	}
	config.Auth = Auth{Header: "x"}
	if _, err := New("test", config, map[string]string{"other": "s3cret"}, 1); err == nil || !strings.Contains(err.Error(), `"other"`) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("secret of an unknown credential: got error %v", err)
	}
}
