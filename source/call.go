package source

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Call describes one upstream call for the limiter: the properties that determine its quota policies
// and its cost, and the candidate credentials.
type Call struct {
	Facet, Document, Method, Key string
	// Host is the host of the upstream, with its port if the base URL has one.
	Host string
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
	// URL is the URL of the call without its credential. It can contain other secrets, so log only
	// the result of Source.RedactURL.
	URL     *url.URL
	Status  int   // HTTP status of the response; 0 means that no response arrived
	Bytes   int   // length of the body as it was sent, possibly compressed
	Err     error // error of the call; set if the response is missing or incomplete
	Notices []announced.Notice
	// Generation is the generation of the token that the call was sent with; 0 means that the
	// credential does not renew itself.
	Generation int64

	classify func() classification // nil if no response arrived
}

// Refused reports whether the response makes the whole source back off: its class is quota, and it
// blocks the source. Other refusals, such as 401 or maintenance, are no reason to back off. Refused
// decompresses the response again, so callers use it only if they need it.
func (r CallResult) Refused() bool {
	if r.classify == nil {
		return false
	}
	v := r.classify()
	return v.class == Quota && v.block == BlockSource
}

// CallOutcomes lists all texts that CallResult.Outcome can return.
var CallOutcomes = [...]string{"2xx", "304", "404", "429", "4xx", "5xx", "timeout", "other"}

// Outcome returns the kind of the call's result, one of CallOutcomes. A response that did not
// arrive completely within Config.Timeout is a timeout, also if its status is known. "4xx" is another
// status from 400 to 499. The outcome of the remaining statuses, failed connections and incomplete
// bodies is "other".
func (r CallResult) Outcome() string {
	switch {
	case errors.Is(r.Err, errTimeout):
		return "timeout"
	case r.Status == http.StatusNotModified:
		return "304"
	case r.Status == http.StatusNotFound:
		return "404"
	case r.Status == http.StatusTooManyRequests:
		return "429"
	case r.Status >= 400 && r.Status <= 499:
		return "4xx"
	case r.Status >= 500 && r.Status <= 599:
		return "5xx"
	case r.Status >= 200 && r.Status <= 299 && r.Err == nil:
		return "2xx"
	}
	return "other"
}

// classificationOf returns the class and the block that Read gives to the response before it extracts
// the content.
func classificationOf(s *Source, resp response) classification {
	w := workspaces.Get().(*workspace)
	defer w.free()
	v := responseReader{s: s, w: w, response: resp, now: time.Now()}.classify(true)
	return classification{class: v.Class, block: v.Block}
}

// readNotices returns the quota state that a response reports. It decompresses the body only if
// a rule of Config.Announced reads the body.
func readNotices(s *Source, resp response) []announced.Notice {
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
			if w.decompress(resp, int64(s.config.MaxBody)) != nil {
				w.plain.Reset() // if the body was not read to its end, it is ignored
			}
		}
		return w.plain.Bytes()
	}, time.Now())
	// Redis stores the resource name and operators see it, so redact credentials in it.
	for i := range notices {
		notices[i].Resource = string(s.credentials.redact([]byte(notices[i].Resource)))
	}
	return notices
}
