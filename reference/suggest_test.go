package reference

import "testing"

func TestSuggest_FindsTheMeantName(t *testing.T) {
	known := []string{"baseURL", "auth", "timeout", "maxBody", "gzip", "secretEnv", "clientCAFile", "quiet", "to"}
	for unknown, want := range map[string]string{
		"url": "baseURL", "base_url": "baseURL", "BaseUrl": "baseURL", "env": "secretEnv", "timeot": "timeout", "timeouts": "timeout",
		"quite": "quiet", "ca": "clientCAFile", "clientCaFile": "clientCAFile", "zip": "gzip", "x": "", "up": "", "": "", "???": "",
	} {
		if got := Suggest(unknown, known); got != want {
			t.Errorf("Suggest(%q): got %q, want %q", unknown, got, want)
		}
	}
}

func TestEnvName_SeparatesWords(t *testing.T) {
	for name, want := range map[string]string{"highReserve": "HIGH_RESERVE", "clientCAFile": "CLIENT_CA_FILE", "jwksURL": "JWKS_URL", "my-shop": "MY_SHOP"} {
		if got := EnvName(name); got != want {
			t.Errorf("EnvName(%q): got %q, want %q", name, got, want)
		}
	}
}
