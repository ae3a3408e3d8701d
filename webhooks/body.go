package webhooks

import (
	"errors"
	"io"

	"golang.org/x/sync/semaphore"
)

const (
	// maxBody is the maximum length of a body. It is the maximum of GitHub's deliveries.
	maxBody = 25 << 20
	// maxBodyMemory is the maximum memory of all bodies that are being read in a process.
	maxBodyMemory = 4 * maxBody
	// firstRead is the length of the first part of a body for which memory is reserved.
	firstRead = 16 << 10
)

// errMemory means that the bodies of other deliveries use the memory.
var errMemory = errors.New("too many large deliveries are being received")

// bodyMemory limits the memory of the bodies that are being read. A body reserves memory only for the bytes
// that have arrived, so a sender that announces a long body and sends nothing blocks no other.
type bodyMemory struct{ *semaphore.Weighted }

func newBodyMemory() bodyMemory { return bodyMemory{semaphore.NewWeighted(maxBodyMemory)} }

// read reads a body to its end. The caller must call release when it no longer uses the body, also after an
// error.
func (m bodyMemory) read(from io.Reader) (body []byte, release func(), err error) {
	reserved := int64(0)
	release = func() { m.Release(reserved) }
	for {
		if len(body) == cap(body) {
			grown := max(firstRead, 2*int64(cap(body)))
			if !m.TryAcquire(grown - reserved) {
				return nil, release, errMemory
			}
			reserved = grown
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, release, nil
		}
		if err != nil {
			return nil, release, err
		}
	}
}
