package observe

import (
	"sync"
	"time"
)

const (
	// maxLinesPerSecond is how many lines a LogSampler passes in each second before it skips lines.
	maxLinesPerSecond = 20
	// sampledEach means that a LogSampler passes only every 100th line after the first
	// maxLinesPerSecond lines of a second.
	sampledEach = 100
)

// LogSampler limits a DEBUG line that is written for each call or read: it passes the first 20
// lines of each second, and then every 100th line. The zero value is ready to use. Its method may
// be called concurrently.
type LogSampler struct {
	mu      sync.Mutex
	second  int64 // the second that is being counted, as Unix time
	lines   int   // number of lines in the current second, including the skipped lines
	skipped int   // number of skipped lines since the last line that was passed
}

// Pass reports whether a line is written now. If so, skipped is the number of lines that were
// skipped since the previous written line.
func (s *LogSampler) Pass(now time.Time) (skipped int, pass bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if second := now.Unix(); second != s.second {
		s.second, s.lines = second, 0
	}
	s.lines++
	if over := s.lines - maxLinesPerSecond; over > 0 && over%sampledEach != 0 {
		s.skipped++
		return 0, false
	}
	skipped, s.skipped = s.skipped, 0
	return skipped, true
}

// Milliseconds returns a duration as a log attribute in milliseconds, rounded to microseconds.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
