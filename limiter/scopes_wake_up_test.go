package limiter

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// wakesTold records the processes named on the wake-up channel.
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

// take returns the processes named since the last call.
func (w *wakesTold) take() []string {
	w.redis.Publish(wakesHeard, "")
	<-w.heard // all earlier messages were received too
	names := w.names
	w.names = nil
	return names
}
