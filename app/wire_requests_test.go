package app

import (
	"reflect"
	"testing"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// The depth of a request limits how far links are followed. So the retry of a failed request, and the
// replay of its dead letter, must have the same depth.
func TestRequests_KeepTheDepth(t *testing.T) {
	e := schemas.Entity{Source: "court", Facet: "layout", Key: "a/B.xml"}
	replayed := schemas.UpdateRequest{Entity: e, Depth: 2}
	for name, c := range map[string]struct{ got, want producer.Request }{
		"link": {
			claimedRequest(schemas.Trigger, prefetched.ClaimedRequest{Entity: e, Version: 7, Depth: 2}),
			producer.Request{Entity: e, Lane: schemas.Low, Reason: schemas.Link, Floor: 7, Depth: 2},
		},
		"trigger": {
			claimedRequest(schemas.Trigger, prefetched.ClaimedRequest{Entity: e, Version: 7}),
			producer.Request{Entity: e, Lane: schemas.Low, Reason: schemas.Trigger, Floor: 7},
		},
		"retry": {
			retryRequest(store.Status{Entity: e, Lane: schemas.Low, Depth: 2}),
			producer.Request{Entity: e, Lane: schemas.Low, Reason: schemas.Retry, Depth: 2},
		},
		"replay": {
			replayRequest(dlq.ReplayRequest{Request: replayed, Lane: schemas.Low}),
			producer.Request{Entity: e, Lane: schemas.Low, Reason: schemas.Replay, Depth: 2},
		},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, c.got, c.want)
		}
	}
}
