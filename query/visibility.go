package query

import (
	"net/http"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

// errNotVisible is the response to a client that may not see an entity. The cause is the
// visibility of the stored snapshot, or the visibility that a fetch would have now. The response
// is the same whether or not anything is stored. It is sent before any wait, and nothing is
// enqueued.
var errNotVisible error = &readError{
	problem.New(http.StatusNotFound, problem.NotFound, "There is no such entity, or your API key or token may not see it."),
	&readBody{Freshness: store.NotFound},
}

// notVisible is the view of an entity that the client may not see.
var notVisible = view{notVisible: true, freshness: store.NotFound}
