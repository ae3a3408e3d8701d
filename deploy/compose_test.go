package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestCompose_PublishesOnLoopbackOnly(t *testing.T) {
	type service struct {
		Image          string
		Ports, Volumes []string
	}
	var compose struct{ Services map[string]service }
	// The YAML decoder reports a key that overrides a merged key (<<) as a duplicate, so duplicates
	// are allowed here.
	if err := yaml.UnmarshalWithOptions([]byte(text(t, "../docker-compose.yml")), &compose, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	if len(compose.Services) < 10 {
		t.Fatalf("services: got %d, want at least 10", len(compose.Services))
	}
	// Each mounted path must exist in the repository, with two exceptions. The operator creates the
	// folder "secrets", and other tests check the folder "dashboards".
	unchecked := map[string]bool{"secrets": true, "dashboards": true}
	for name, s := range compose.Services {
		if image, tag, _ := strings.Cut(s.Image, ":"); !strings.HasPrefix(image, "freshet") && (tag == "" || tag == "latest") {
			t.Errorf("%s: got image %s, want one with a version", name, s.Image)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: got published port %s, want it on 127.0.0.1", name, port)
			}
		}
		for _, volume := range s.Volumes {
			from, _, _ := strings.Cut(volume, ":")
			if !strings.HasPrefix(from, "./") || unchecked[filepath.Base(from)] {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", from)); err != nil {
				t.Errorf("%s: mounted path: got %v, want an existing one", name, err)
			}
		}
	}
}
