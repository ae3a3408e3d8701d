package query

import (
	"net/http"
	"strings"
	"time"
)

// notModified reports whether the client already has the entry's content, by If-None-Match or,
// if that is absent, by If-Modified-Since (RFC 9110 §13.2.2).
func notModified(r *http.Request, e *entry) bool {
	if none := r.Header["If-None-Match"]; len(none) > 0 {
		return matchesETag(none, e.etag[0])
	}
	since := r.Header["If-Modified-Since"]
	if len(since) != 1 {
		return false
	}
	at, err := http.ParseTime(since[0])
	return err == nil && !e.UpdatedAt.Truncate(time.Second).After(at)
}

// matchesETag reports whether an If-None-Match value contains the tag, by weak comparison (RFC
// 9110 §8.8.3.2), or is *.
func matchesETag(values []string, etag string) bool {
	opaque := strings.TrimPrefix(etag, "W/")
	for _, list := range values {
		for list != "" {
			list = strings.TrimLeft(list, " \t,")
			if strings.HasPrefix(list, "*") {
				return true
			}
			list = strings.TrimPrefix(list, "W/")
			if !strings.HasPrefix(list, `"`) {
				break // the next element of If-None-Match is no entity tag, so the rest of the header value is ignored
			}
			end := strings.IndexByte(list[1:], '"')
			if end < 0 {
				break
			}
			if list[:end+2] == opaque {
				return true
			}
			list = list[end+2:]
		}
	}
	return false
}
