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
	// What is merged in may be given anew, which the decoder takes for a key that stands twice.
	if err := yaml.UnmarshalWithOptions([]byte(text(t, "../docker-compose.yml")), &compose, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	if len(compose.Services) < 10 {
		t.Fatalf("only %d services", len(compose.Services))
	}
	// Secrets are put there by who has them; the dashboards have tests of their own.
	elsewhere := map[string]bool{"secrets": true, "dashboards": true}
	for name, s := range compose.Services {
		if image, tag, _ := strings.Cut(s.Image, ":"); !strings.HasPrefix(image, "freshet") && (tag == "" || tag == "latest") {
			t.Errorf("%s: the image %s is of no version", name, s.Image)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond loopback", name, port)
			}
		}
		for _, volume := range s.Volumes {
			from, _, _ := strings.Cut(volume, ":")
			if !strings.HasPrefix(from, "./") || elsewhere[filepath.Base(from)] {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", from)); err != nil {
				t.Errorf("%s mounts what does not exist: %v", name, err)
			}
		}
	}
}
