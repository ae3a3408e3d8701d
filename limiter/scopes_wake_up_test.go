package limiter

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// wakeUpRecorder records the names of processes in the messages of the wake-up channel.
type wakeUpRecorder struct {
	redis    *miniredis.Miniredis
	names    []string
	received chan struct{}
}

const syncChannel = "received"

func newWakeUpRecorder(t *testing.T, m *miniredis.Miniredis) *wakeUpRecorder {
	w := &wakeUpRecorder{redis: m, received: make(chan struct{})}
	subscriber := m.NewSubscriber()
	subscriber.Subscribe(wakeUpChannel("s"))
	subscriber.Subscribe(syncChannel)
	go func() {
		for message := range subscriber.Messages() {
			if message.Channel == syncChannel {
				w.received <- struct{}{}
				continue
			}
			w.names = append(w.names, message.Message)
		}
	}()
	t.Cleanup(subscriber.Close)
	return w
}

// take returns the processes named since the last call.
func (w *wakeUpRecorder) take() []string {
	w.redis.Publish(syncChannel, "")
	<-w.received // wait until the recorder has received the message "", and so all messages before it
	names := w.names
	w.names = nil
	return names
}
