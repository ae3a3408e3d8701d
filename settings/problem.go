package settings

import (
	"errors"
	"net/http"

	"github.com/freshet/freshet/problem"
)

// toProblem returns the problem for an error that the caller caused, or nil for any other error.
func toProblem(err error) *problem.HTTPError {
	if err, ok := errors.AsType[*UnknownSourceError](err); ok {
		return problem.New(http.StatusNotFound, problem.NoSuchSource, err.Error())
	}
	if err, ok := errors.AsType[*InvalidError](err); ok {
		return problem.New(http.StatusUnprocessableEntity, err.Code, err.Error())
	}
	if err, ok := errors.AsType[*ConflictError](err); ok {
		return problem.New(http.StatusPreconditionFailed, problem.RevisionConflict, err.Error())
	}
	if errors.Is(err, ErrBusy) {
		return problem.New(http.StatusConflict, problem.Busy, err.Error())
	}
	return nil
}
