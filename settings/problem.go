package settings

import (
	"errors"
	"net/http"

	"github.com/freshet/freshet/problem"
)

// explain returns what a caller is told of its own mistakes, and nil of all else.
func explain(err error) *problem.HTTPError {
	if err, ok := errors.AsType[*NoSourceError](err); ok {
		return problem.New(http.StatusNotFound, "no-such-source", err.Error())
	}
	if err, ok := errors.AsType[*RefusedError](err); ok {
		return problem.New(http.StatusUnprocessableEntity, err.Part+"-refused", err.Error())
	}
	if err, ok := errors.AsType[*ConflictError](err); ok {
		return problem.New(http.StatusPreconditionFailed, "revision-conflict", err.Error())
	}
	if errors.Is(err, ErrBusy) {
		return problem.New(http.StatusConflict, "busy", err.Error())
	}
	return nil
}
