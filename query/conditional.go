package query

import "strings"

// matches reports whether one of the If-None-Match values names the tag, by the
// weak comparison (RFC 9110 §8.8.3.2), or is *.
func matches(values []string, etag string) bool {
	opaque := strings.TrimPrefix(etag, "W/")
	for _, list := range values {
		for list != "" {
			list = strings.TrimLeft(list, " \t,")
			if strings.HasPrefix(list, "*") {
				return true
			}
			list = strings.TrimPrefix(list, "W/")
			if !strings.HasPrefix(list, `"`) {
				break // not a tag: what follows can't be told apart
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
