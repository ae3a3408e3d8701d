package source

import (
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Call is what a call is charged by, and who may make it.
type Call struct {
	Facet, Document, Method, Key string
	// Params are the values of the facet's placeholders.
	Params map[string]string
	// Resource is the budget that the document is known to be charged to; empty: that is
	// learned from the answers, if it is announced at all.
	Resource string
	// Costs are what the call is estimated to cost, by unit; of a unit that is not
	// named it costs 1.
	Costs map[string]int
	// Client is the schemas.ClientID on whose behalf the worker makes it; "": nobody's.
	Client string
	// Credentials are the names of those that may make it; of a source with one
	// credential or none it is the empty name.
	Credentials []string
}

// CallResult is how a call ended.
type CallResult struct {
	Status  int   // 0 if no answer came
	Err     error // why there is no whole answer
	Notices []announced.Notice
}

// readNotices returns what an answer announces of the source's quotas.
func (s *Source) readNotices(one response) []announced.Notice {
	if one.header == nil {
		return nil
	}
	var w *workspace
	defer func() {
		if w != nil {
			w.free()
		}
	}()
	notices := s.announced.Read(one.header, func() []byte {
		if w == nil {
			w = workspaces.Get().(*workspace)
			w.plain.Reset()
			if s.decompress(w, one) != nil {
				w.plain.Reset() // half a body tells nothing
			}
		}
		return w.plain.Bytes()
	}, time.Now())
	for i := range notices { // its name is kept in Redis and shown
		notices[i].Resource = string(s.redact([]byte(notices[i].Resource)))
	}
	return notices
}
