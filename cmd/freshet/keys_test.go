package main

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/settings"
)

// as runs a command against the running dev process with a token.
func (d *dev) as(token string, args ...string) (code int, stdout, stderr string) {
	d.Helper()
	return command(d.T, []string{"FRESHET_ADDR=" + d.api, "FRESHET_TOKEN=" + token}, args...)
}

func TestKeys_CreateListRevoke(t *testing.T) {
	d := startDev(t, "--no-demo")
	d.until("a fresh answer", "somebody", isFresh) // wait until dev has started completely; another test covers a stop during the start
	code, key, notes := d.as("", "keys", "create", "--name", "a dashboard", "--scopes", "read,refresh", "--expires", "90d")
	if code != 0 || !regexp.MustCompile(`^fsk_[0-9a-z]{12}_[0-9A-Za-z_-]{43}\n$`).MatchString(key) {
		t.Fatalf("create: got exit %d, stdout %q, stderr %q; want 0, an API key", code, key, notes)
	}
	for _, want := range []string{`"a dashboard" with scopes read,refresh`, "not shown again", "does not require keys yet", "access.require"} {
		if !strings.Contains(notes, want) {
			t.Errorf("got %q, want %q in it", notes, want)
		}
	}
	id := key[4:16]
	if strings.Contains(notes, key[20:50]) {
		t.Errorf("stderr: got %q, want a text without the key", notes)
	}
	table := strings.Join(strings.Fields(d.mustRun(0, nil, "keys", "list")), " ")
	for _, want := range []string{"ID NAME SCOPES STATE CREATED BY", id + " a dashboard read,refresh active until 20", "unauthenticated@127.0.0.1"} {
		if !strings.Contains(table, want) {
			t.Errorf("got %[2]s, want %[1]q in it", want, table)
		}
	}
	d.mustRun(2, []string{"--yes"}, "keys", "revoke", id)
	if text := d.mustRun(2, []string{"the key's ID"}, "keys", "revoke", "--yes", strings.TrimSpace(key)); strings.Contains(text, key[20:50]) {
		t.Errorf("revoke of a key: got %q, want a text without the key", text)
	}
	d.mustRun(0, []string{"key " + id + ` of "a dashboard" is revoked`}, "keys", "revoke", id, "--yes")
	d.mustRun(0, []string{"revoked 20", "by unauthenticated@127.0.0.1"}, "keys", "list")
	d.mustRun(3, []string{"There is no key"}, "keys", "revoke", "aaaaaaaaaaaa", "--yes")
	d.mustRun(2, []string{"--name a-dashboard --scopes read,refresh"}, "keys", "create", "--name", "a")
	if code, _, notes := d.as("", "keys", "create", "--name", "a partner", "--scopes", "read, see:partner"); code != 0 || !strings.Contains(notes, `"a partner" with scopes read,see:partner`) {
		t.Errorf("create: got exit %d, output %s; want 0, a text that contains %q", code, notes, `"a partner" with scopes read,see:partner`)
	}
	d.mustRun(1, []string{"must be read, refresh, inspect, delegate or admin"}, "keys", "create", "--name", "a", "--scopes", "write")
	d.mustRun(1, []string{"from a minute to ten years"}, "keys", "create", "--name", "a", "--scopes", "read", "--expires", "soon")
	d.mustRun(2, []string{"table, json or jsonl"}, "keys", "list", "-o", "xml")
	d.mustRun(0, []string{"key-create", "key-revoke", id}, "settings", "audit")
	if code, stderr := d.stop(); code != 0 || stderr != "" {
		t.Errorf("stop: got exit %d, want 0: %s", code, stderr)
	}
}

func TestKeys_AdminAPIRequiresKey(t *testing.T) {
	token := strings.Repeat("0123456789abcdef", 4)
	d := startDev(t, "--no-demo", "--config", write(t, "access: {adminTokenFile: "+write(t, token+"\n")+"}\n"))
	for _, args := range [][]string{{"settings", "get"}, {"stop", "--yes"}, {"limiter"}, {"keys", "list"}, {"settings", "audit"}} {
		for _, wrong := range []string{"", "x", "fsk_aaaaaaaaaaaa_" + strings.Repeat("A", 43)} {
			code, stdout, stderr := d.as(wrong, args...)
			if code != 1 || stdout != "" || !strings.Contains(stderr, "Set FRESHET_TOKEN to an API key or token with the scope admin") {
				t.Errorf("%q with %q: got exit %d, stdout %q, stderr %q; want 1, none, a text that contains %q",
					args, wrong, code, stdout, stderr,
					"Set FRESHET_TOKEN to an API key or token with the scope admin")
			}
		}
	}
	code, admin, notes := d.as(token, "keys", "create", "--name", "on-call", "--scopes", "admin")
	if code != 0 || strings.Contains(notes, "nobody") {
		t.Fatalf("create by a token: got exit %d, output %s; want 0, a text without %q", code, notes, "nobody")
	}
	admin = strings.TrimSpace(admin)
	code, reader, _ := d.as(admin, "keys", "create", "--name", "reader", "--scopes", "read")
	if code != 0 {
		t.Fatalf("create by an admin key: got exit %d, want 0", code)
	}
	if code, _, stderr := d.as(strings.TrimSpace(reader), "keys", "list"); code != 1 || !strings.Contains(stderr, "needs the scope admin") || !strings.Contains(stderr, "FRESHET_TOKEN") {
		t.Errorf("key with the scope read: got exit %d, output %s; want 1, a text that contains %q and FRESHET_TOKEN",
			code, stderr, "needs the scope admin")
	}
	if code, _, stderr := d.as(admin, "stop", "--yes"); code != 0 {
		t.Errorf("stop by an admin key: got exit %d, want 0: %s", code, stderr)
	}
	_, text, _ := d.as(admin, "settings", "audit", "-o", "json")
	var entries []settings.Entry
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		t.Fatal(err)
	}
	want := []string{"stop by key:" + admin[4:16] + " on-call", "key-create by key:" + admin[4:16] + " on-call", "key-create by admin-token"}
	var got []string
	for _, e := range entries {
		got = append(got, e.Action+" by "+e.Actor)
	}
	if !slices.Equal(got, want) || strings.Contains(text, token) || strings.Contains(text, admin[20:50]) {
		t.Errorf("audit: got %q, want %q, without a secret in %s", got, want, text)
	}
}

func TestAdminClient_WarnsOfTokenOverHTTP(t *testing.T) {
	const warning = "warning: FRESHET_TOKEN is sent to"
	for addr, warned := range map[string]bool{
		"http://freshet.invalid:8080": true, "HTTP://freshet.invalid/": true, "freshet.invalid:8080": true, "http://127.0.0.1@freshet.invalid/": true,
		"https://freshet.invalid": false, "127.0.0.1:1": false, "http://localhost:1/": false, "http://[::1]:1": false, "0.0.0.0:1": false,
	} {
		for _, token := range []string{"", "a-token"} {
			var stderr strings.Builder
			p := &program{app.NewProcess([]string{"FRESHET_TOKEN=" + token}, io.Discard, &stderr)}
			if _, err := p.newAdminClient(addr); err != nil {
				t.Errorf("%s: %v", addr, err)
			}
			if text := stderr.String(); strings.Contains(text, warning) != (warned && token != "") || strings.Contains(text, "a-token") {
				t.Errorf("%s with %q: got %q, want a text without the token, with the warning: %v", addr, token, text, warned && token != "")
			}
		}
	}
}

func TestKeys_RequiredAfterRestart(t *testing.T) {
	dir := t.TempDir()
	d := startDev(t, "--no-demo", "--data-dir", dir)
	_, key, _ := d.as("", "keys", "create", "--name", "on-call", "--scopes", "admin")
	d.mustRun(0, nil, "settings", "get")
	d.stop()
	d = startDev(t, "--no-demo", "--data-dir", dir)
	if code, _, stderr := d.as("", "settings", "get"); code != 1 || !strings.Contains(stderr, "FRESHET_TOKEN") {
		t.Errorf("without a key: got exit %d, output %s; want 1, a text that contains FRESHET_TOKEN", code, stderr)
	}
	if code, _, stderr := d.as(strings.TrimSpace(key), "settings", "get"); code != 0 {
		t.Errorf("with the key: got exit %d, want 0: %s", code, stderr)
	}
}

func TestQuery_RefusesUnprotectedListener(t *testing.T) {
	database := "FRESHET_DATABASE_URL=" + servicetest.Postgres(t)
	query := []string{"query", "--config", write(t, nexonSource), "--listen", "0.0.0.0:0", "--ops-listen", "127.0.0.1:0"}
	if code, _, stderr := command(t, []string{database}, query...); code != 1 || !strings.Contains(stderr, "freshet migrate up") {
		t.Errorf("before migrations: got exit %d, output %s; want 1, a text that contains %q", code, stderr, "freshet migrate up")
	}
	if code, _, stderr := command(t, []string{database}, "migrate", "up"); code != 0 {
		t.Fatalf("migrate up: got exit %d, want 0: %s", code, stderr)
	}
	for env, want := range map[string]string{
		"":                              "is not loopback, without any credentials: set access.adminTokenFile",
		"FRESHET_ACCESS_REQUIRE=always": "is not loopback",
		"FRESHET_ACCESS_ADMIN_TOKEN_FILE=" + write(t, "short"): "access.adminTokenFile: ",
		"FRESHET_ACCESS_REQUIRE=yes":                           `access.require: "yes" must be auto, always or never`,
		"FRESHET_ACCESS_ALGORITHMS=RS256, none":                "access.algorithms[1]: none means unsigned tokens",
		"FRESHET_ACCESS_LIMITS_NEW_KEYS=many":                  `access.limits.newKeys: "many" must be`,
		"FRESHET_ACCESS_HOSTS=query, query:8080":               `access.hosts[1]: "query:8080" must be`,
		"FRESHET_ACCESS_LIMITS_WAITING=-1":                     "access.limits.waiting: -1 must not be negative",
		"FRESHET_OPS_LISTEN=127.0.0.1":                         "ops.listen",
	} {
		code, stdout, stderr := command(t, []string{database, env}, query...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: got exit %d, stdout %q, stderr %q; want 1, none, a text that contains %q", env, code, stdout, stderr, want)
		}
	}
}

func TestAudit_AnonymousActorIsRemoteAddress(t *testing.T) {
	d := startDev(t, "--no-demo")
	stop := func(header, value string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.api+"/admin/v1/sources/nexon/stop", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header, value)
		resp, err := d.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := stop("X-Forwarded-For", "10.0.0.1"); got != http.StatusForbidden {
		t.Errorf("a forwarded request: got %d, want 403", got)
	}
	if got := stop("Authorization", "Bearer x"); got != http.StatusOK {
		t.Errorf("a request of this machine: got %d, want 200", got)
	}
	if _, text := d.do(http.MethodGet, d.api+"/admin/v1/settings"); !strings.Contains(string(text), `"changedBy":"unauthenticated@127.0.0.1"`) {
		t.Errorf("settings: got %s, want changedBy unauthenticated@127.0.0.1", text)
	}
}

func TestOps_RefusesRemoteListenerByDefault(t *testing.T) {
	for _, args := range [][]string{{"query", "--listen", "127.0.0.1:0"}, {"worker"}} {
		for _, address := range []string{"0.0.0.0:0", ":9464", "10.0.0.1:9464"} {
			code, stdout, stderr := command(t, []string{"FRESHET_CONFIG=" + write(t, nexonSource)}, append(args, "--ops-listen", address)...)
			if code != 1 || stdout != "" || !strings.Contains(stderr, "ops.listen: "+address+" is beyond loopback") || !strings.Contains(stderr, "ops.allowRemote: true") {
				t.Errorf("%q at %s: got exit %d, stdout %q, stderr %q; want 1, none, a text that contains %q, %q",
					args, address, code, stdout, stderr,
					"ops.listen: "+address+" is beyond loopback", "ops.allowRemote: true")
			}
		}
	}
}
