package app

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/freshet/freshet/source/token"
)

// tokenSource returns a configuration file with a credential, whose token is written as YAML.
func tokenSource(preset, credential string) string {
	return fmt.Sprintf("secrets: {keyFile: /keys}\nsources:\n  a:\n    preset: %s\n    auth: {secretEnv: \"\", prefix: \"Bearer \"}\n    credentials:\n      - name: app\n        %s\n", preset, strings.ReplaceAll(strings.TrimSpace(credential), "\n", "\n        "))
}

func TestConfig_ReadsTokenExamples(t *testing.T) {
	text, err := os.ReadFile("../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	_, examples, _ := strings.Cut(string(text), "```yaml\n# Reddit")
	examples, _, found := strings.Cut(examples, "```")
	all := strings.Split(examples, "\n---\n")
	if !found || len(all) != 6 {
		t.Fatalf("docs/credentials.md: got %d examples, want 6", len(all))
	}
	grants := []string{token.ClientCredentials, token.RefreshToken, token.RefreshToken, token.JWTBearer, token.JWTBearer, token.Login}
	for i, preset := range []string{"reddit", "hubspot", "jira", "github-rest", "reddit", "reddit"} {
		c, err := parseConfig("f.yaml", []byte(tokenSource(preset, all[i])), nil, RequiredSources)
		if err != nil {
			t.Errorf("example %d: %v", i, err)
			continue
		}
		if got := renewing(c.Sources["a"]); len(got) != 1 || got[0].Token.Grant != grants[i] {
			t.Errorf("example %d: got %+v, want grant %s", i, got, grants[i])
		}
		if one := c.Sources["a"].Credentials[0].Token; one.Preset == "github-app" && one.JWT.SendIn != "header" {
			t.Errorf("github-app: got jwt.sendIn %q, want header", one.JWT.SendIn)
		}
	}
}

func TestConfig_TokenNeedsKeyFile(t *testing.T) {
	text := tokenSource("reddit", "token: {preset: reddit, clientId: a, clientSecretEnv: B}")
	if _, err := parseConfig("f.yaml", []byte(text), nil, RequiredSources); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ old, replacement, want string }{
		{"secrets: {keyFile: /keys}\n", "", "secrets.keyFile: is missing"},
		{"preset: reddit, clientId: a", "preset: reddit", "clientId: is missing"},
		{"{preset: reddit", "{preset: other", "the presets of token endpoints are github-app, google, hubspot, jira, reddit"},
		{"clientSecretEnv: B}", "clientSecretEnv: B}\n        secretEnv: C", "replaces secretEnv"},
		{"preset: reddit, clientId: a", "preset: reddit, clientId: a, tokenURL: \"http://far.example/t\"", "unencrypted"},
	} {
		changed := strings.Replace(text, test.old, test.replacement, 1)
		if _, err := parseConfig("f.yaml", []byte(changed), nil, RequiredSources); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.replacement, err, test.want)
		}
	}
}
