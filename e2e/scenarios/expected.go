package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// expected computes the snapshot that a response must contain. It fetches the document from a
// second upstream with the same seed, which returns the same documents. A scenario that changes
// documents cannot use it.
type expected struct{ src *source.Source }

func (s *site) expect() (*expected, error) {
	src, end, err := harness.ReferenceSource(s.Facets)
	if err != nil {
		return nil, err
	}
	s.OnClose(end)
	return &expected{src}, nil
}

// document returns the expected snapshot of a key.
func (x *expected) document(ctx context.Context, facet, key string) ([]byte, error) {
	c, err := harness.FetchContent(ctx, x.src, facet, key)
	if err != nil {
		return nil, fmt.Errorf("fetch the expected document of %s: %w", key, err)
	}
	defer c.Release()
	return bytes.Clone(c.Bytes), nil
}

var errWrongDocument = errors.New("response with the document of another key")

// check returns an error if a reply does not contain the document of its key.
func (x *expected) check(ctx context.Context, a harness.Reply, key string) error {
	want, err := x.document(ctx, small, key)
	if err == nil && !bytes.Equal(a.Snapshot, want) {
		err = fmt.Errorf("%s: %w: %.60s; want %.60s", key, errWrongDocument, a.Snapshot, want)
	}
	return err
}

// bodies maps the number in a key to the distinct compressed response bodies that were received
// for the key. The bodies are checked after the measurement, because a check takes processor
// time.
type bodies map[int][][]byte

func (b bodies) add(n int, text []byte) {
	if !slices.ContainsFunc(b[n], func(other []byte) bool { return bytes.Equal(other, text) }) {
		b[n] = append(b[n], text)
	}
}

func (b bodies) count() (n int) {
	for _, texts := range b {
		n += len(texts)
	}
	return n
}

// countWrong counts the bodies whose document is not the document that is stored for their key.
func (b bodies) countWrong(ctx context.Context, x *expected) (wrong int, err error) {
	for n, texts := range b {
		want, err := x.document(ctx, facet, harness.ContentKey(n))
		if err != nil {
			return 0, err
		}
		for _, text := range texts {
			var a harness.Reply
			if text, err := compressed(text).Decode(nil); err != nil || json.Unmarshal(text, &a) != nil || !bytes.Equal(a.Snapshot, want) {
				wrong++
			}
		}
	}
	return wrong, nil
}

// compressed returns a snapshot whose payload is the zstd frame in text.
func compressed(text []byte) (s store.Snapshot) {
	s.Encoding, s.Payload = store.Zstd, text
	return s
}
