package webhooks

import (
	"cmp"
	"slices"
	"time"
)

// Counts are the numbers of deliveries of one webhook that one process has received since its start.
type Counts struct {
	Results map[string]int64 `json:"results,omitempty"` // number of deliveries by result
	// LastMS is the Unix time in ms of the last delivery with a valid signature; 0 means that there
	// was none.
	LastMS int64 `json:"lastMs,omitempty"`
}

// Deliveries are the numbers of deliveries of one webhook that all running processes have received
// since their starts.
type Deliveries struct {
	Source, Name string
	Results      map[string]int64
	Last         time.Time // time of the last delivery with a valid signature; zero means that there was none
}

// Accepted returns the number of deliveries with the result accepted: each has requested a refresh.
func (d Deliveries) Accepted() int64 { return d.Results[string(accepted)] }

// NotAccepted is the number of deliveries with one result that is not "accepted".
type NotAccepted struct {
	Result   string
	Count    int64
	Severity Severity
}

// NotAccepted returns the number of deliveries for each result except accepted. The most frequent
// result is first.
func (d Deliveries) NotAccepted() (all []NotAccepted) {
	for re, n := range d.Results {
		if re != string(accepted) && n > 0 {
			all = append(all, NotAccepted{re, n, result(re).severity()})
		}
	}
	slices.SortFunc(all, func(a, b NotAccepted) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Result, b.Result))
	})
	return all
}

// Add adds the counts of one process.
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
