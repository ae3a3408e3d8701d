package query

import (
	"net/http"

	"github.com/freshet/freshet/problem"
)

// errNotVisible is the response to a client that may not see an entity: neither what is stored
// nor what a fetch would return. It is the same whether or not anything is stored. It is
// returned before any wait and before anything is enqueued.
var errNotVisible error = &readError{
	problem.New(http.StatusNotFound, "not-found", "There is no such entity, or your API key or token may not see it."),
	&readBody{Freshness: NotFound},
}

// notVisible is the view of such an entity in a batch.
var notVisible = view{notVisible: true, freshness: NotFound}
