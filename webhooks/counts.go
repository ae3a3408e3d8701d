package webhooks

import "time"

// Counts are the deliveries of one webhook since the start of one process.
type Counts struct {
	Results map[string]int64 `json:"results,omitempty"` // number of deliveries by result
	// LastMS is the Unix time in ms of the last delivery with a valid signature; 0: there was none.
	LastMS int64 `json:"lastMs,omitempty"`
}

// Deliveries are the deliveries of one webhook since the start of the running processes.
type Deliveries struct {
	Source, Name string
	Results      map[string]int64
	Last         time.Time // last delivery with a valid signature; zero: there was none
}

// Add adds the deliveries of one process.
func (d *Deliveries) Add(c Counts) {
	if d.Results == nil {
		d.Results = map[string]int64{}
	}
	for result, n := range c.Results {
		d.Results[result] += n
	}
	if last := time.UnixMilli(c.LastMS).UTC(); c.LastMS > 0 && last.After(d.Last) {
		d.Last = last
	}
}
