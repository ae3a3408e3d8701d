package main

import (
	"strings"
	"testing"
)

func TestConfig_RefusesACredentialOverPlainHTTP(t *testing.T) {
	const key = "auth: {header: X-Key, secretEnv: A_KEY}"
	for _, c := range []struct {
		name, baseURL, settings string
		refused                 bool
	}{
		{"another machine", "http://api.example/v3", key, true},
		{"a name of the cluster", "http://upstream:9090", key, true},
		{"an address", "http://10.0.0.7", key, true},
		{"a file with the secret", "http://api.example", "auth: {header: X-Key, secretFile: /run/key}", true},
		{"several credentials", "http://api.example", "auth: {header: X-Key}\n    credentials: [{name: a, secretEnv: A}]", true},
		{"a header of one's own", "http://api.example", "headers: {authorization: Bearer x}", true},
		{"meant", "http://api.example", key + "\n    insecure: true", false},
		{"https", "https://api.example", key, false},
		{"loopback", "http://127.0.0.1:9090", key, false},
		{"loopback by name", "http://localhost:9090", key, false},
		{"no credential", "http://api.example", "headers: {User-Agent: x}", false},
	} {
		text := strings.Replace(minimal, "    baseURL: https://api.example/v3\n", "    baseURL: "+c.baseURL+"\n    "+c.settings+"\n", 1)
		code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, text))
		if (code != 0) != c.refused {
			t.Errorf("%s: got exit %d, want refused %v: %s%s", c.name, code, c.refused, stdout, stderr)
		}
		for _, want := range []string{"sources.mine.baseURL: the source would send its credential unencrypted over http", "insecure: true", "^"} {
			if c.refused && !strings.Contains(stderr, want) {
				t.Errorf("%s: got %q, want it to mention %q", c.name, stderr, want)
			}
		}
	}
}

func TestDev_RefusesACredentialOverPlainHTTP(t *testing.T) {
	code, _, stderr := command(t, nil, "dev", "--listen", "127.0.0.1:0", "--upstream", "http://api.example")
	if code != 2 || !strings.Contains(stderr, "--upstream: sources.nexon.baseURL") {
		t.Errorf("got exit %d and %q, want 2 and the source named", code, stderr)
	}
}
