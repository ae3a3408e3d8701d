package source

import (
	"context"
	"errors"
	"net"
	"testing"
)

func TestConfig_DialReplacesTCP(t *testing.T) {
	refused := errors.New("refused by the test")
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, refused }
	if _, err := newTransport(1, dial).DialContext(t.Context(), "tcp", "127.0.0.1:1"); !errors.Is(err, refused) {
		t.Errorf("got %v, want %v", err, refused)
	}
}
