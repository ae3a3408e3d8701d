package limiter

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// wakesTold hears who is told that it may have a place.
type wakesTold struct {
	redis *miniredis.Miniredis
	names []string
	heard chan struct{}
}

const wakesHeard = "heard"

func newWakesTold(t *testing.T, m *miniredis.Miniredis) *wakesTold {
	w := &wakesTold{redis: m, heard: make(chan struct{})}
	line := m.NewSubscriber()
	line.Subscribe(wakeUpChannel("s"))
	line.Subscribe(wakesHeard)
	go func() {
		for message := range line.Messages() {
			if message.Channel == wakesHeard {
				w.heard <- struct{}{}
				continue
			}
			w.names = append(w.names, message.Message)
		}
	}()
	t.Cleanup(line.Close)
	return w
}

// take returns who was told since it was asked last.
func (w *wakesTold) take() []string {
	w.redis.Publish(wakesHeard, "")
	<-w.heard // all before that were heard too
	names := w.names
	w.names = nil
	return names
}
