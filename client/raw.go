package client

import (
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Raw reports whether the body is the content of a raw facet, and returns its media type. Such a
// response has the status 200, and a media type other than application/json or a strong ETag.
func (r Response) Raw() (mediaType string, ok bool) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	etag := r.Header.Get("ETag")
	ok = r.Code == http.StatusOK && err == nil && etag != "" && (kind != "application/json" || !strings.HasPrefix(etag, "W/"))
	if !ok {
		return "", false
	}
	return r.Header.Get("Content-Type"), true
}

// rawResult returns the result of a read of a raw facet. Its times are in headers.
func rawResult(answer Response, mediaType string) Result[json.RawMessage] {
	result := Result[json.RawMessage]{Snapshot: answer.Text, MediaType: mediaType, ETag: answer.Header.Get("ETag"), Freshness: freshnessOf(answer.Header)}
	result.LastUpdatedAt, _ = http.ParseTime(answer.Header.Get("Last-Modified"))
	result.LastCheckedAt = checkedAt(answer.Header)
	return result
}

// freshnessOf returns the freshness from the headers of a response.
func freshnessOf(h http.Header) Freshness {
	if maxAge(h) > 0 {
		return Fresh
	}
	return Stale
}

// checkedAt returns the time of the last check, from the header Age; zero: there is none.
func checkedAt(h http.Header) time.Time {
	age, err := strconv.ParseInt(h.Get("Age"), 10, 32)
	if err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(age) * time.Second).UTC()
}
