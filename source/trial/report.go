package trial

import (
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/source"
)

// Options configures Run.
type Options struct {
	// Twice makes the call a second time after Pause, and compares the contents.
	Twice bool
	Pause time.Duration
	// Limits are the configured limits of the source. Run compares them with the reported ones.
	Limits []Limit
	// Mask returns a URL without the secrets that the configuration contains; nil means that URLs are
	// not changed.
	Mask func(url string) string
	// Choose returns the candidate credential to use; nil uses the first candidate.
	Choose func(candidates []string) (string, error)
}

// Limit is one configured policy: a number of calls per window.
type Limit struct {
	Policy string
	Calls  int
	Window time.Duration
}

// Report is the result of Run. The json tags are the output of `freshet try -o json`.
type Report struct {
	Entity     string     `json:"entity"`
	Class      string     `json:"class"`
	Error      string     `json:"error,omitempty"`
	RetryAfter string     `json:"retryAfter,omitempty"`
	Documents  []Document `json:"documents"`
	Select     []Path     `json:"select,omitempty"`
	Ignore     []Path     `json:"ignore,omitempty"`
	// Bytes is the length of the content. Hash is the hash of the content without the ignored values.
	Bytes int    `json:"bytes"`
	Hash  string `json:"hash,omitempty"`
	// Content is the stored JSON. The content of a raw facet is a string; it is missing if it is not
	// UTF-8.
	Content json.RawMessage `json:"content,omitempty"`
	Changed *Change         `json:"changed,omitempty"`
	// Advice lists what to change in the configuration.
	Advice []string `json:"advice,omitempty"`
}

// Document describes the response to one document.
type Document struct {
	Name         string `json:"name"`
	Method       string `json:"method"`
	URL          string `json:"url"`
	RedirectedTo string `json:"redirectedTo,omitempty"`
	Status       int    `json:"status"`
	ContentType  string `json:"contentType,omitempty"`
	WireBytes    int    `json:"wireBytes"`
	Bytes        int    `json:"bytes"`
	TookMs       int64  `json:"tookMs"`
	Class        string `json:"class"`
	DecidedBy    string `json:"decidedBy"`
	// Limits are the limits that the rules of the setting announced read. LimitHeaders are the headers
	// that look like limits.
	Limits       []ReportedLimit `json:"limits,omitempty"`
	LimitHeaders []string        `json:"limitHeaders,omitempty"`
	ETag         string          `json:"etag,omitempty"`
	LastModified string          `json:"lastModified,omitempty"`
	NextPage     string          `json:"nextPage,omitempty"`
	// Sample is the beginning of a response body that has no content to store.
	Sample string `json:"sample,omitempty"`
}

// ReportedLimit is the state of one policy, as a response reports it. A field without a value is nil.
type ReportedLimit struct {
	Policy    string `json:"policy"`
	Resource  string `json:"resource,omitempty"`
	Limit     *int64 `json:"limit,omitempty"`
	Remaining *int64 `json:"remaining,omitempty"`
	Cost      *int64 `json:"cost,omitempty"`
	Reset     string `json:"reset,omitempty"`
}

// Path is one path of the setting `select` or `ignore`, with the number of values that it matches.
type Path struct {
	Path   string `json:"path"`
	Values int    `json:"values"`
}

// Change is the difference between the contents of two calls.
type Change struct {
	// Members are the paths of all values that differ. Hashed are the paths of the values that change
	// the hash, because the setting `ignore` does not list them.
	Members []string `json:"members"`
	Hashed  []string `json:"hashed"`
	// Second is the class of the second response, if that response has no content.
	Second string `json:"second,omitempty"`
}

// Run calls one entity and reports how the source reads the response. `config` is the configuration of
// the source. An error means that no report exists: the request is invalid or was not sent.
func Run(ctx context.Context, s *source.Source, config source.Config, r source.Request, o Options) (Report, error) {
	a, err := Call(ctx, s, r, o.Choose)
	if err != nil {
		return Report{}, err
	}
	mask := o.Mask
	if mask == nil {
		mask = func(url string) string { return url }
	}
	report := Report{Entity: s.Name() + "/" + r.Facet + "/" + r.Key, Class: string(a.Class), Bytes: len(a.Content), Hash: a.Hash, Content: a.Content}
	if config.Facets[r.Facet].Raw != nil {
		report.Content = quoted(a.Content)
	}
	if a.Err != nil {
		report.Error = mask(a.Err.Error())
	}
	if a.RetryAfter > 0 {
		report.RetryAfter = a.RetryAfter.Round(time.Second).String()
	}
	for _, in := range a.Documents {
		report.Documents = append(report.Documents, describeDocument(in, config, a.Took, mask))
	}
	facet := config.Facets[r.Facet]
	if a.Class == source.OK {
		for _, path := range facet.Select {
			report.Select = append(report.Select, Path{path, s.CountMatches(a.Responses, path)})
		}
		for _, path := range facet.Ignore {
			report.Ignore = append(report.Ignore, Path{path, s.CountMatches(a.Responses, path)})
		}
	}
	if o.Twice && a.Class == source.OK {
		timer := time.NewTimer(o.Pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return report, context.Cause(ctx)
		}
		again, err := Call(ctx, s, r, o.Choose)
		if err != nil {
			return report, err
		}
		report.Changed = &Change{Members: []string{}, Hashed: []string{}}
		if again.Class == source.OK && facet.Raw != nil {
			if a.Hash != again.Hash {
				report.Changed.Members, report.Changed.Hashed = []string{a.Documents[0].Document}, []string{a.Documents[0].Document}
			}
		} else if again.Class == source.OK {
			report.Changed.Members, report.Changed.Hashed = source.ChangedPaths(a.Content, again.Content), source.ChangedPaths(a.Hashed, again.Hashed)
		} else {
			report.Changed.Second = string(again.Class)
		}
	}
	report.Advice = advise(a, s.Name(), config, facet, report, o.Limits)
	return report, nil
}

// quoted returns raw content as a JSON string, or nil if it is not UTF-8.
func quoted(content []byte) json.RawMessage {
	if len(content) == 0 || !utf8.Valid(content) {
		return nil
	}
	text, err := json.Marshal(string(content))
	if err != nil {
		return nil // cannot happen: every string can be encoded
	}
	return text
}

// decidedBy names the part of a response that decided its class.
func decidedBy(in source.Inspection, rules []source.Rule) string {
	switch {
	case in.Rule >= 0 && in.Rule < len(rules):
		return describeRule(in.Rule, rules[in.Rule])
	case in.Status == 0:
		return "no response arrived"
	case in.Class == source.BadContent && in.Status == 200:
		return "the content"
	}
	return "the status; no rule matches"
}
