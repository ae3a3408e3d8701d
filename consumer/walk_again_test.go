package consumer_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/items"
)

// During an open walk, an item on a page that was already fetched changes, and a webhook announces
// this. The change must be found by a second walk. No third walk may follow.
func TestCollection_ChangeDuringWalkIsFound(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"})
	r.list.set(func(u *listUpstream) {
		u.answer = func(_ http.ResponseWriter, _ *http.Request, n int) bool {
			if n == 2 {
				u.items[0].Text = "changed"
				if err := r.collections.WalkAgain(t.Context(), []schemas.Entity{entity("k")}); err != nil {
					t.Error(err)
				}
			}
			return false
		}
	})
	r.start()
	r.refresh()
	r.until("the end of the second walk", func() bool {
		items, err := r.collections.Items(t.Context(), entity("k"), collection.Range{ID: "i00", Limit: 1})
		return err == nil && len(items) == 1 && strings.Contains(string(items[0].Content), "changed") && !r.state().Walk.Open()
	})
	r.untilCommitted(schemas.Low)
	r.wantCalls("both walks", r.list.take(), "1", "2", "3", "1", "2", "3")
	r.wantList()
}
