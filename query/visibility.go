package query

import (
	"net/http"

	"github.com/freshet/freshet/problem"
)

// errNotVisible is the answer to a client that may not see an entity, be it for what would be
// fetched now or for what is stored: the same whether anything is stored or not. It is
// given before anything is waited or asked for, and in the first case before anything is
// looked at.
var errNotVisible error = &readError{
	problem.New(http.StatusNotFound, "not-found", "There is no such entity, or this API key or token may not see it."),
	&readBody{Freshness: NotFound},
}

// notVisible is errUnseen among several.
var notVisible = view{notVisible: true, freshness: NotFound}
