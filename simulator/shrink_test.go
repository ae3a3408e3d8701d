package simulator

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func TestFault_SetsHeaders(t *testing.T) {
	s := New(Config{})
	control(t, s, `{"faults": [{"kind": "429", "retryAfter": "9", "headers": {
		"RateLimit": "\"burst\";r=0;t=30", "x-ratelimit-reset": "1800000030", "retry-after": "2.5", "server": "other", "content-type": "application/problem+json"}}]}`)
	h := get(t, s, equipment+"a").Header()
	for name, want := range map[string]string{
		"RateLimit": `"burst";r=0;t=30`, "X-RateLimit-Reset": "1800000030", "Retry-After": "2.5", "Server": "other", "Content-Type": "application/problem+json",
		"Pragma": "no-cache",
	} {
		if got := h.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("header %s: got %q, want %q", name, got, want)
		}
	}
	for kind, more := range map[Kind]string{
		HTML200: "", BadJSON: "", Shrink: "", NotReady: "", InternalError: "", Redirect: `, "location": "/x"`, Deep: `, "depth": 3`, Oversize: `, "bytes": 99`,
	} {
		control(t, s, fmt.Sprintf(`{"faults": [{"kind": %q, "headers": {"X-A": "b"}%s}]}`, kind, more))
		if got := get(t, s, equipment+"a", "Accept-Encoding", "gzip").Header().Get("X-A"); got != "b" {
			t.Errorf("%s: got header %q", kind, got)
		}
	}
	control(t, s, `{"faults": []}`)
	if h := get(t, s, equipment+"a").Header(); h.Get("X-A") != "" || h.Get("Server") != "inface" {
		t.Errorf("response without a fault: got headers %v", h)
	}
}

func TestFault_ShrinkKeepsShape(t *testing.T) {
	for _, pretty := range []bool{false, true} {
		s := New(Config{Pretty: pretty})
		for _, target := range []string{equipment + "a", "/maplestory/v1/character/stat?ocid=a", "/maplestory/v1/character/basic?ocid=a"} {
			control(t, s, `{"faults": []}`)
			whole := get(t, s, target).Body.Bytes()
			control(t, s, `{"faults": [{"kind": "shrink"}]}`)
			w := get(t, s, target)
			few := w.Body.Bytes()
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != jsonType || !bytes.Equal(gunzip(t, get(t, s, target, "Accept-Encoding", "gzip").Body), few) {
				t.Errorf("%s: got %d %v", target, w.Code, w.Header())
			}
			if strings.Contains(target, "basic") {
				if !bytes.Equal(few, whole) {
					t.Error("a document without lists changed")
				}
				continue
			}
			if len(few)*3 > len(whole) {
				t.Errorf("%s: got %d of %d bytes", target, len(few), len(whole))
			}
			before, after := decode(t, whole), decode(t, few)
			for name, value := range before {
				got, there := after[name]
				list, isList := value.([]any)
				if isList {
					left, still := got.([]any)
					if !still || len(left) != len(list)/shrinkFactor || !reflect.DeepEqual(left, list[:len(left)]) {
						t.Errorf("%s: got %d of %d entries of %s", target, len(left), len(list), name)
					}
				} else if !there || !reflect.DeepEqual(got, value) {
					t.Errorf("%s: %s: got %v, want %v", target, name, got, value)
				}
			}
			if len(after) != len(before) || bytes.Contains(few, []byte("\n")) != pretty {
				t.Errorf("%s: got another shape: %.80s", target, few)
			}
		}
	}
}
