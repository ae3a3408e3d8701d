package webhooks

import (
	"errors"
	"io"

	"golang.org/x/sync/semaphore"
)

const (
	// maxBody is the maximum length of a delivery's body. GitHub's deliveries have the same maximum.
	maxBody = 25 << 20
	// maxBodyMemory is the maximum memory of one process for bodies that are being read or used.
	maxBodyMemory = 4 * maxBody
	// firstRead is the memory that is reserved when the read of a body begins.
	firstRead = 16 << 10
)

// errMemory is returned if other deliveries use all memory for bodies.
var errMemory = errors.New("too many large deliveries are being received")

// bodyMemory limits the memory for bodies. A body gets more memory only as its bytes arrive. So a
// sender that announces a long body and sends nothing does not block other deliveries.
type bodyMemory struct{ *semaphore.Weighted }

func newBodyMemory() bodyMemory { return bodyMemory{semaphore.NewWeighted(maxBodyMemory)} }

// read reads a body to its end. The caller must call `release` when it no longer uses the body, also
// after an error.
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
