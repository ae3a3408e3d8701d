package deploy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// composed is a service in docker-compose.yml, with the settings that limit the rights of its
// container.
type composed struct {
	Image       string
	User        string
	Command     []string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	Build       struct {
		Args map[string]string
	}
}

// composeServices returns the services of docker-compose.yml by name.
func composeServices(t *testing.T) map[string]composed {
	t.Helper()
	var compose struct{ Services map[string]composed }
	// The YAML decoder reports a key that overrides a merged key (<<) as a duplicate, so duplicates
	// are allowed here.
	if err := yaml.UnmarshalWithOptions([]byte(text(t, "../docker-compose.yml")), &compose, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	return compose.Services
}

func TestCompose_DropsCapabilitiesAndRootWrites(t *testing.T) {
	// These images write to their root file system, so it can't be read-only. Comments in
	// docker-compose.yml explain these writes.
	writes := map[string]bool{"kafka": true, "grafana": true}
	services := composeServices(t)
	if len(services) < 10 {
		t.Fatalf("got %d services, want at least 10", len(services))
	}
	for name, s := range services {
		if got := fmt.Sprint(s.CapDrop); got != "[ALL]" {
			t.Errorf("%s: got cap_drop %s, want [ALL]", name, got)
		}
		if got := fmt.Sprint(s.SecurityOpt); got != "[no-new-privileges:true]" {
			t.Errorf("%s: got security_opt %s, want [no-new-privileges:true]", name, got)
		}
		if s.ReadOnly == writes[name] {
			t.Errorf("%s: got read_only %v, want %v", name, s.ReadOnly, !writes[name])
		}
		// The entrypoints of these images start as root and then change to another user. Without
		// capabilities that fails, so docker-compose.yml must set the user.
		if root := strings.HasPrefix(s.Image, "redis:") || strings.HasPrefix(s.Image, "postgres:"); root && s.User == "" {
			t.Errorf("%s: got no user, want one other than root", name)
		}
	}
}

func TestImages_AreBuiltForProduction(t *testing.T) {
	dockerfile, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nARG TAGS=production\n", `go build -tags "$TAGS"`, "\nUSER 65532:65532\n", "\nFROM scratch\n"} {
		if !strings.Contains(string(dockerfile), want) {
			t.Errorf("deploy/Dockerfile: got no %q, want it", want)
		}
	}
	for name, s := range composeServices(t) {
		tags, set := s.Build.Args["TAGS"]
		simulates := len(s.Command) > 0 && s.Command[0] == "simulate"
		if simulates != (set && tags == "") || simulates && s.Image == "freshet" {
			t.Errorf("%s: got the image %s with build arguments %v; want TAGS empty and another image for the simulator alone", name, s.Image, s.Build.Args)
		}
	}
}
