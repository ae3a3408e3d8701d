package client

import "testing"

func TestBaseURL_AcceptsAddressesAndURLs(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:8080": "http://127.0.0.1:8080", "freshet.example:80": "http://freshet.example:80",
		":8080": "http://127.0.0.1:8080", "0.0.0.0:8080": "http://127.0.0.1:8080", "[::]:8080": "http://127.0.0.1:8080",
		"https://freshet.example": "https://freshet.example", "https://freshet.example/api/": "https://freshet.example/api", "https://0.0.0.0:8443": "https://127.0.0.1:8443",
	} {
		if got, err := BaseURL(addr); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", addr, got, err, want)
		}
	}
}

func TestBaseURL_RefusesOtherText(t *testing.T) {
	for _, addr := range []string{"", "freshet.example", "ftp://freshet.example", "https://", "http://[::1"} {
		if got, err := BaseURL(addr); err == nil {
			t.Errorf("%q: got %q, want an error", addr, got)
		}
	}
}
