package query

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// entityOf returns the entity in the request path, and its facet. It returns errNotVisible if
// the client may not see what a fetch would return now.
func (s *Server) entityOf(c echo.Context, client access.Client) (schemas.Entity, source.Facet, error) {
	e, f, src, err := s.facetOf(c)
	if err != nil {
		return e, f, err
	}
	if e.Key, err = pathParam(c, "key"); err != nil {
		return e, f, err
	}
	if err := checkKey(e, src); err != nil {
		return e, f, err
	}
	s.traceEntity(c, e)
	if !client.Sees(src.Visibility(e.Key)) {
		return e, f, errNotVisible
	}
	return e, f, nil
}

// entityAndWait returns the entity, its facet, and how long the client wants to wait.
func (s *Server) entityAndWait(c echo.Context, client access.Client) (e schemas.Entity, f source.Facet, wait time.Duration, err error) {
	// parseWait comes first because it sets a response header: the header must be the same
	// whether or not the client may see the entity.
	if wait, err = s.parseWait(c); err == nil {
		e, f, err = s.entityOf(c, client)
	}
	return e, f, wait, err
}

// facetOf returns the source and the facet in the request path, and an entity with their names
// and without a key.
func (s *Server) facetOf(c echo.Context) (e schemas.Entity, f source.Facet, src Source, err error) {
	if e.Source, err = pathParam(c, "source"); err != nil {
		return e, f, nil, err
	}
	if e.Facet, err = pathParam(c, "facet"); err != nil {
		return e, f, nil, err
	}
	src, known := s.sources[e.Source]
	if !known {
		return e, f, nil, problem.New(http.StatusNotFound, "no-such-source", "There is no such source. The configuration lists the sources.")
	}
	if f, known = src.Facet(e.Facet); !known {
		return e, f, nil, problem.New(http.StatusNotFound, "no-such-facet", fmt.Sprintf("Source %s has no such facet.", e.Source))
	}
	return e, f, src, nil
}

// pathParam returns one unescaped segment of the path. The router matches the escaped path, so
// this is the only place that unescapes.
func pathParam(c echo.Context, name string) (string, error) {
	text, err := url.PathUnescape(c.Param(name))
	if err != nil {
		return "", problem.New(http.StatusBadRequest, "bad-key", fmt.Sprintf("The %s has an invalid percent-encoding.", name))
	}
	return text, nil
}

func checkKey(e schemas.Entity, src Source) error {
	err := schemas.CheckKey(e.Key)
	if err == nil {
		err = src.CheckKey(e.Facet, e.Key)
	}
	if err != nil {
		return problem.New(http.StatusBadRequest, "bad-key", toSentence(err))
	}
	return nil
}

// toSentence formats an error as a sentence with a capital letter and a full stop.
func toSentence(err error) string {
	text := err.Error()
	return string(text[0]-'a'+'A') + text[1:] + "."
}
