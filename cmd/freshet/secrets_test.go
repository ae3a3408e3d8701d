package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// planted holds one secret of every kind.
var planted = map[string]string{
	"database password": "Db-Passw0rd/1", "direct password": "DirectHunter3", "sslpassword": "SslHunter4", "password parameter": "ParamHunter5",
	"header": "HeaderHunter6", "bearer header": "BearerHunter7", "document header": "DocHunter8", "path key": "PathHunter9",
	"path word": "8f3a1c5e7b9d2f4a6c8e", "body": "BodyHunter10", "form": "FormHunter11", "variable": "VarHunter12",
	"param": "ParamHunter13", "the credential itself": "sk_live_51HunterZ", "prefix": "xoxb-1234567890-hunter",
}

// assertNoSecret fails the test if a text contains a planted secret.
func assertNoSecret(t *testing.T, what, text string) {
	t.Helper()
	for kind, secret := range planted {
		for _, form := range []string{secret, strings.ReplaceAll(secret, "/", "%2F")} {
			if strings.Contains(text, form) {
				at := strings.Index(text, form)
				t.Errorf("%s: got the %s %s in …%s…, want it masked", what, kind, form, text[max(0, at-80):min(len(text), at+40)])
				return
			}
		}
	}
}

func TestConfigPrint_ShowsNoSecret(t *testing.T) {
	text := strings.Replace(fixture(t, "secrets.yaml"), "X-Key, ", "X-Key, ", 1)
	code, stdout, stderr := command(t, nil, "config", "print", "--config", write(t, text))
	if code != 0 {
		t.Fatalf("config print: got exit %d, want 0: %s", code, stderr)
	}
	assertNoSecret(t, "config print", stdout+stderr)
	for _, plain := range []string{"postgres://freshet:REDACTED@db:5432/freshet", "sslmode=verify-full", "application/json", "lang=en", "{key}", "https://shop.example/api", "client_secret=REDACTED"} {
		if !strings.Contains(stdout, plain) {
			t.Errorf("config print: got\n%s\nwant a text that contains %s", stdout, plain)
		}
	}
	code, stdout, stderr = command(t, nil, "config", "check", "--config", write(t, text))
	if code != 0 {
		t.Fatalf("config check: got exit %d, want 0: %s", code, stderr)
	}
	assertNoSecret(t, "config check", stdout+stderr)
}

// The test makes typical mistakes, such as a tab or an unknown setting, in a configuration that
// contains secrets. It makes each mistake in about an eighth of the lines, chosen at random, in one
// line at a time. No error of `config check` may show a secret.
func TestConfigErrors_ShowNoSecret(t *testing.T) {
	lines := strings.SplitAfter(fixture(t, "secrets.yaml"), "\n")
	mistakes := map[string]func(line string) string{
		"an unknown setting": func(line string) string { return strings.Replace(line, ":", "x:", 1) },
		"an unknown setting before": func(line string) string {
			return line[:len(line)-len(strings.TrimLeft(line, " "))] + "nonsense: 1\n" + line
		},
		"an unknown setting after": func(line string) string {
			return line + line[:len(line)-len(strings.TrimLeft(line, " "))] + "nonsense: 1\n"
		},
		"a tab":              func(line string) string { return "\t" + line },
		"a blank too many":   func(line string) string { return " " + line },
		"no colon":           func(line string) string { return strings.Replace(line, ":", "", 1) },
		"no blank":           func(line string) string { return strings.Replace(line, ": ", ":", 1) },
		"no end of quotes":   func(line string) string { return strings.Replace(line, "\"\n", "\n", 1) },
		"a quote too many":   func(line string) string { return strings.Replace(line, ": ", ": \"", 1) },
		"no end of a map":    func(line string) string { return strings.Replace(line, "}\n", "\n", 1) },
		"a list for a value": func(line string) string { return strings.Replace(line, ": ", ": [", 1) },
		"a list":             func(line string) string { return strings.Replace(line, ": ", ": [1, ", 1) + "]\n" },
		"twice":              func(line string) string { return line + line },
		"an anchor":          func(line string) string { return strings.Replace(line, ": ", ": &a ", 1) },
		"an unknown alias":   func(line string) string { return strings.Replace(line, ": ", ": *", 1) },
		"a tag":              func(line string) string { return strings.Replace(line, ": ", ": !!int ", 1) },
		"another type":       func(line string) string { return strings.Replace(line, ": ", ": {a: ", 1) },
		"a line's end":       func(line string) string { return strings.Replace(line, ": ", ":\n", 1) },
		"a colon too many":   func(line string) string { return strings.Replace(line, ": ", ": : ", 1) },
		"a wrong URL":        func(line string) string { return strings.Replace(line, "://", ":/%zz/", 1) },
		"another scheme":     func(line string) string { return strings.Replace(line, "postgres:", "mysql:", 1) },
		"no end of braces":   func(line string) string { return strings.Replace(line, "{key}", "{key", 1) },
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	failed := 0
	for _, name := range slices.Sorted(maps.Keys(mistakes)) {
		mistake := mistakes[name]
		for n := range lines {
			if strings.TrimSpace(lines[n]) == "" || chance.IntN(8) > 0 { // try about an eighth of the lines: with the race detector, all lines would take half a minute
				continue
			}
			text := strings.Join(lines[:n], "") + mistake(lines[n]) + strings.Join(lines[n+1:], "")
			code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, text))
			if code != 0 {
				failed++
			}
			assertNoSecret(t, fmt.Sprintf("%s in line %d (exit %d)", name, n+1, code), stdout+stderr)
		}
	}
	if failed < 20 {
		t.Errorf("errors found: got %d, want more", failed)
	}
}

func TestConfigErrors_StillShowTheMistake(t *testing.T) {
	_, _, stderr := command(t, nil, "config", "check", "--config", write(t, strings.Replace(fixture(t, "secrets.yaml"), "directURL", "directUrl", 1)))
	for _, want := range []string{"directUrl", "unknown setting; did you mean directURL?"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("got %s, want it to name %s", stderr, want)
		}
	}
}

func TestStartErrors_ShowNoSecret(t *testing.T) {
	file := write(t, strings.ReplaceAll(fixture(t, "secrets.yaml"), "@db:5432", "@127.0.0.1:1"))
	for _, args := range [][]string{{"query", "--listen", "127.0.0.1:0"}, {"worker"}, {"scheduler"}, {"migrate", "up"}, {"topics", "ensure"}, {"entities", "list"}} {
		for _, env := range [][]string{nil, {"FRESHET_DATABASE_URL=postgres://u:Db-Passw0rd%2F1@127.0.0.1:1/x?sslmode=nonsense"}, {"FRESHET_DATABASE_URL=Db-Passw0rd/1"}} {
			env = append(env, "FRESHET_ADDR=127.0.0.1:1", "FRESHET_KAFKA_BROKERS=127.0.0.1:1", "FRESHET_REDIS_ADDRESSES=127.0.0.1:1")
			code, stdout, stderr := command(t, env, append(args, "--config", file)...)
			if code == 0 {
				t.Errorf("%v: got exit 0, want an error", args)
			}
			assertNoSecret(t, fmt.Sprint(args, env), stdout+stderr)
		}
	}
}
