package query

import (
	"maps"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

// sourceItem describes one source in the response that lists the sources.
type sourceItem struct {
	Source string   `json:"source"`
	Facets []string `json:"facets"`
}

// facetItem describes one facet in the response that lists the facets of a source.
type facetItem struct {
	Facet      string `json:"facet"`
	Path       string `json:"path"`       // path of a read, with the placeholder {key}
	KeyPattern string `json:"keyPattern"` // regular expression that a whole key must match
	FreshFor   string `json:"freshFor"`
	MediaType  string `json:"mediaType,omitempty"` // media type of a raw facet's content
	Immutable  bool   `json:"immutable,omitempty"`
}

// catalog has the configured sources. It finds the entity that a request path names.
type catalog struct {
	sources map[string]Source
	tracing *tracing
}

// visibleSources returns the names of the sources of which the client may see at least one entity,
// sorted.
func (cat *catalog) visibleSources(client access.Client) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(cat.sources)), func(name string) bool {
		return !slices.ContainsFunc(cat.sources[name].Visibilities(), client.Sees)
	})
}

// isRestricted reports whether not every client may see the entity.
func (cat *catalog) isRestricted(e schemas.Entity) bool {
	return cat.sources[e.Source].Visibility(e.Key) != ""
}

// listSources responds with the sources that the client may see.
func (cat *catalog) listSources(c echo.Context, client access.Client) error {
	list := struct {
		Sources []sourceItem `json:"sources"`
	}{[]sourceItem{}}
	for _, name := range cat.visibleSources(client) {
		list.Sources = append(list.Sources, sourceItem{name, cat.sources[name].FacetNames()})
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, list)
}

// listFacets responds with the facets of a source. A request for a source that the client may not
// see gets the same response as a request for an unknown source.
func (cat *catalog) listFacets(c echo.Context, client access.Client) error {
	name, err := pathParam(c, "source")
	if err != nil {
		return err
	}
	if !slices.Contains(cat.visibleSources(client), name) {
		return unknownSource()
	}
	list := struct {
		Source string      `json:"source"`
		Facets []facetItem `json:"facets"`
	}{name, []facetItem{}}
	for _, facet := range cat.sources[name].FacetNames() {
		f, _ := cat.sources[name].Facet(facet)
		list.Facets = append(list.Facets, facetItem{facet, "/v1/" + name + "/" + facet + "/{key}", f.KeyPattern, schemas.FormatDuration(f.FreshFor), f.MediaType(), f.Immutable})
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, list)
}

func unknownSource() *problem.HTTPError {
	return problem.New(http.StatusNotFound, problem.NoSuchSource, "There is no such source. GET /v1 lists the sources.")
}
