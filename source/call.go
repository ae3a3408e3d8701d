package source

import (
	"net/url"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Call describes one upstream call for the limiter: the properties that determine its quota policies
// and its cost, and the candidate credentials.
type Call struct {
	Facet, Document, Method, Key string
	// Params are the values of the facet's placeholders.
	Params map[string]string
	// Resource is the name of the upstream's budget that the call is charged to, for example "core"
	// of GitHub. If it is empty, the limiter learns the name from the responses.
	Resource string
	// Costs are the estimated costs of the call by unit. A unit that is missing costs 1.
	Costs map[string]int
	// Client is the schemas.ClientID of the client that requested the refresh, or "".
	Client string
	// Credentials are the names of the credentials that the call may use. If the source lists no
	// credentials, the only name is the empty one.
	Credentials []string
}

// CallResult is the outcome of one call, passed to Permit.Finished.
type CallResult struct {
	// URL is the URL of the call without its credential. It can contain other secrets, so only
	// Source.RedactURL may show it.
	URL     *url.URL
	Status  int   // 0 if no response arrived
	Bytes   int   // length of the body as it was sent, possibly compressed
	Err     error // set if the response is missing or incomplete
	Notices []announced.Notice
}

// readNotices returns the quota state that a response reports. It decompresses the body only if
// a rule of Config.Announced reads the body.
func (s *Source) readNotices(resp response) []announced.Notice {
	if resp.header == nil {
		return nil
	}
	var w *workspace
	defer func() {
		if w != nil {
			w.free()
		}
	}()
	notices := s.announced.Read(resp.header, func() []byte {
		if w == nil {
			w = workspaces.Get().(*workspace)
			w.plain.Reset()
			if s.decompress(w, resp) != nil {
				w.plain.Reset() // an incomplete body is ignored
			}
		}
		return w.plain.Bytes()
	}, time.Now())
	// Redis stores the resource name and operators see it, so redact credentials in it.
	for i := range notices {
		notices[i].Resource = string(s.redact([]byte(notices[i].Resource)))
	}
	return notices
}
