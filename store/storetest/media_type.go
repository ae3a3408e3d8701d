package storetest

import (
	"crypto/sha256"

	"github.com/freshet/freshet/store"
)

// rawContent returns the write of a fetch of raw content with version n at time at(n).
func rawContent(n int64, mediaType, text string) store.Write {
	w := content(entity, n, "")
	w.Hash = sha256.Sum256([]byte(text))
	w.Payload = func() (store.Payload, error) {
		p := store.Encode([]byte(text))
		p.MediaType = mediaType
		return p, nil
	}
	return w
}

// wantMediaType fails the test unless Get, GetAll and States all return the media type.
func (b suite) wantMediaType(want string) {
	b.Helper()
	if one, all, states := b.readStates(); one.MediaType != want || all.MediaType != want || states.MediaType != want {
		b.Fatalf("media type: Get %q, GetAll %q, States %q, want %q", one.MediaType, all.MediaType, states.MediaType, want)
	}
}

// testMediaType stores raw content, whose media type must always be that of the stored payload.
func testMediaType(b suite) {
	b.write(one(store.Changed), rawContent(5, "application/xml", "<a/>"))
	b.wantMediaType("application/xml")
	if text, err := b.get(entity).Decode(nil); err != nil || string(text) != "<a/>" {
		b.Fatalf("raw content: got %q, %v, want <a/>", text, err)
	}
	b.write(one(store.Superseded), rawContent(4, "text/plain", "a"))
	b.write(one(store.Touched), b.withoutPayload(rawContent(6, "", "<a/>")))
	b.write(one(store.NotFoundStored), notFound(entity, 7)) // a not-found result of the same visibility keeps the content
	b.wantMediaType("application/xml")
	other := rawContent(8, "image/png", "<a/>")
	other.ExtractVersion++
	b.write(one(store.Rewritten), other)
	b.wantMediaType("image/png")
	b.write(one(store.Rewritten), content(entity, 9, "x"))
	b.wantMediaType("")
	b.write(one(store.Changed), within("staff", rawContent(10, "text/plain", "b")))
	b.write(one(store.NotFoundStored), notFound(entity, 11)) // a not-found result of another visibility deletes the content
	b.wantMediaType("")
}
