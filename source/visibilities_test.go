package source_test

import (
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
)

func TestVisibilities_AreThoseOfTheCredentials(t *testing.T) {
	facets := map[string]source.Facet{}
	for _, name := range []string{"b", "a"} {
		facets[name] = source.Facet{KeyPattern: ".+", FreshFor: time.Hour, NotFoundFor: time.Hour, FailedFor: time.Hour, KeepFor: 2 * time.Hour, Documents: map[string]source.Document{"d": {Path: "/x/{key}"}}}
	}
	config := source.Config{BaseURL: "http://127.0.0.1", Facets: facets, Timeout: time.Second, MaxBody: 1}
	if src, err := source.New("api", config, nil, 1); err != nil {
		t.Fatal(err)
	} else if got := src.Visibilities(); !slices.Equal(got, []string{""}) {
		t.Errorf("without credentials: got %q, want only the visibility of all readers", got)
	} else if got := src.FacetNames(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("facets: got %q, want a and b", got)
	}
	config.Auth.Header = "X-Key"
	config.Credentials = []source.Credential{
		{Name: "first", SecretEnv: "A", Visibility: "internal"}, {Name: "second", SecretEnv: "B"}, {Name: "third", SecretEnv: "C", Visibility: "internal"},
	}
	src, err := source.New("api", config, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := src.Visibilities(); !slices.Equal(got, []string{"", "internal"}) {
		t.Errorf("with credentials: got %q, want the empty one and internal", got)
	}
}
