package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestCompose_MountsTheConfigurationOfTheUser(t *testing.T) {
	var compose struct {
		Configs  map[string]struct{ File string }
		Services map[string]struct {
			Image       string
			Configs     []struct{ Source, Target string }
			Environment map[string]string
			EnvFile     []struct {
				Path     string
				Required bool
			} `yaml:"env_file"`
		}
	}
	if err := yaml.UnmarshalWithOptions([]byte(text(t, "../docker-compose.yml")), &compose, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	if got, want := compose.Configs["freshet"].File, "${FRESHET_CONFIG:-deploy/freshet.yaml}"; got != want {
		t.Errorf("file of the config: got %s, want %s", got, want)
	}
	for name, s := range compose.Services {
		if s.Image != "freshet" {
			continue
		}
		if len(s.Configs) != 1 || s.Configs[0].Source != "freshet" || s.Configs[0].Target != s.Environment["FRESHET_CONFIG"] {
			t.Errorf("%s: got configs %v, want the config freshet at %s", name, s.Configs, s.Environment["FRESHET_CONFIG"])
		}
		for variable := range s.Environment {
			if strings.HasPrefix(variable, "FRESHET_SOURCES_") {
				t.Errorf("%s: got %s, want no variable of a source, which another file may not have", name, variable)
			}
		}
		switch worker := name == "worker"; {
		case !worker && len(s.EnvFile) > 0:
			t.Errorf("%s: got env_file %v, want none: only workers need credentials", name, s.EnvFile)
		case worker && (len(s.EnvFile) != 1 || s.EnvFile[0].Path != ".env" || s.EnvFile[0].Required):
			t.Errorf("%s: got env_file %v, want .env, not required", name, s.EnvFile)
		}
	}
	for _, file := range []string{"../.gitignore", "../.dockerignore"} {
		if !strings.Contains("\n"+text(t, file), "\n.env\n") {
			t.Errorf("%s: got no line .env, want one, because the file has credentials", file)
		}
	}
}

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
