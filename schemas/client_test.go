package schemas

import "testing"

func TestClientID_IsShortAndStable(t *testing.T) {
	a, b := ClientID("key:abc"), ClientID("key:abd")
	if a == b || len(a) != ClientIDSize || a != ClientID("key:abc") {
		t.Fatalf("got %q and %q", a, b)
	}
	if got := ClientOf([]Header{{TraceParent, []byte("x")}, {ClientHeader, []byte(a)}}); got != a {
		t.Errorf("got %q, want %q", got, a)
	}
}

func TestClientOf_RejectsMalformed(t *testing.T) {
	for _, text := range []string{"", "short", "sixteen signs \n.", "far-too-long-for-an-id", "ünïcödé-aaaaa"} {
		if got := ClientOf([]Header{{ClientHeader, []byte(text)}}); got != "" {
			t.Errorf("got %q of %q, want none", got, text)
		}
	}
	if got := ClientOf(nil); got != "" {
		t.Errorf("got %q of no headers", got)
	}
}
