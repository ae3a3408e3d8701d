package access

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// cron sends a maintenance request with this value of X-Cron-Secret and returns the status and the body.
func cron(t *testing.T, g *Guard, headers ...string) (status int, body string) {
	t.Helper()
	handler := g.Cron(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := ClientFromContext(r.Context())
		_, _ = w.Write([]byte(c.Name))
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/admin/v1/maintenance/reap", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const wrongSecret = `{"error":"UNAUTHORIZED","message":"Invalid cron secret"}` + "\n" //nolint:misspell // callers know this code

func TestCron_NeedsTheSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := strings.Repeat("a1", 16), strings.Repeat("b2", 16)
		file := write(t, one+"\n")
		g, _ := fakeGuard(t, func(c *Config) { c.CronSecretFile = file })
		for name, headers := range map[string][]string{
			"wrong": {cronHeader, two}, "empty": {cronHeader, ""}, "1 MB": {cronHeader, strings.Repeat("a", 1<<20)},
			"twice": {cronHeader, one, cronHeader, one}, "longer": {cronHeader, one + "a"}, "shorter": {cronHeader, one[1:]},
		} {
			if status, body := cron(t, g, headers...); status != 401 || body != wrongSecret {
				t.Errorf("%s: got %d %s, want 401 %s", name, status, body, wrongSecret)
			}
		}
		if status, body := cron(t, g, cronHeader, one); status != 200 || body != cronClient {
			t.Errorf("the secret: got %d %s, want 200 and the client %s", status, body, cronClient)
		}
		if status, _ := cron(t, g); status != 401 {
			t.Errorf("no secret and no token: got %d, want 401", status)
		}
		if err := os.WriteFile(file, []byte(two), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keyReadInterval)
		synctest.Wait()
		if status, _ := cron(t, g, cronHeader, two); status != 200 {
			t.Errorf("the secret that replaced the first: got %d, want 200", status)
		}
		if status, _ := cron(t, g, cronHeader, one); status != 401 {
			t.Errorf("the replaced secret: got %d, want 401", status)
		}
	})
}

func TestCron_WithoutASecretNeedsTheScopeAdmin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := strings.Repeat("a1", 16)
		g, _ := fakeGuard(t, func(c *Config) { c.AdminTokenFile = write(t, token) })
		for name, secret := range map[string]string{"any": token, "empty": "", "zero bytes": strings.Repeat("\x00", 32)} {
			if status, body := cron(t, g, cronHeader, secret); status != 401 || body != wrongSecret {
				t.Errorf("%s: got %d %s, want 401", name, status, body)
			}
		}
		if status, body := cron(t, g, "Authorization", "Bearer "+token); status != 200 || body != "admin-token" {
			t.Errorf("the admin token: got %d %s, want 200", status, body)
		}
	})
}

// BenchmarkCron compares the time of a right secret with the time of wrong ones.
func BenchmarkCron(b *testing.B) {
	secret := strings.Repeat("a1", 16)
	sum, err := readSecretFile(write(b, secret))
	if err != nil {
		b.Fatal(err)
	}
	f := &secretFile{}
	f.hash.Store(&sum)
	for name, text := range map[string]string{"right": secret, "wrong": strings.Repeat("b2", 16), "empty": "", "1MB": strings.Repeat("a", 1<<20)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f.matches(text)
			}
		})
	}
}
