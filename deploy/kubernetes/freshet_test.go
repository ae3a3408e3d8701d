package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// freshet is the path of the freshet binary that TestMain builds.
var freshet string

// TestMain builds freshet from the source code of this repository, with the build tags of the
// image.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "freshet-kubernetes-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		freshet = filepath.Join(dir, "freshet")
		build := exec.Command("go", "build", "-tags", "production", "-o", freshet, "./cmd/freshet")
		build.Dir = filepath.Join("..", "..")
		if text, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build freshet in %s: %v\n%s", build.Dir, err, text)
			return 1
		}
		return m.Run()
	}())
}

// refused returns an empty string if freshet accepts the command with these flags, and otherwise an
// error text.
func refused(args []string) string {
	text, err := exec.Command(freshet, append(append([]string{}, args...), "--help")...).CombinedOutput()
	var words []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			break
		}
		words = append(words, a)
	}
	// For an unknown command freshet prints the help of the parent command. That help contains the
	// text [command], and the help of a known command does not.
	usage := "Usage:\n  freshet " + strings.Join(words, " ") + " [flags]\n"
	if err != nil || !strings.Contains(string(text), usage) || strings.Contains(string(text), " [command]\n") {
		return fmt.Sprintf("unknown command or flags: freshet %s (%v)", strings.Join(args, " "), err)
	}
	return ""
}

func TestContainers_RunExistingCommands(t *testing.T) {
	seen := 0
	for _, w := range judge(manifests(t)).workloads {
		for _, c := range w.containers() {
			if why := refused(append(c.Command, c.Args...)); why != "" {
				t.Errorf("%s/%s: %s", w.name, c.Name, why)
			}
			seen++
		}
	}
	if seen != 5 {
		t.Errorf("containers: got %d, want 5", seen)
	}
	for _, args := range [][]string{{"queries"}, {"topics", "insure"}, {"topics"}, {"worker", "--lanes", "high"}, {}, {"--config", "x"}} {
		if refused(args) == "" {
			t.Errorf("refused %q: got no error, want one", args)
		}
	}
}

// checked runs `freshet config check` with the environment of a container. The files that a
// container mounts below /etc/freshet are written below the directory `dir` instead.
func checked(t *testing.T, files map[string]string, c corev1.Container, dir string) (string, error) {
	t.Helper()
	for path, text := range map[string]string{
		"config/freshet.yaml": judge(files).config, "upstream/credential": "CREDENTIAL",
		"services/database-url": "postgres://freshet:PASSWORD@postgres.example:5432/freshet?sslmode=verify-full",
	} {
		to := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := exec.Command(freshet, "config", "check")
	for _, e := range c.Env {
		check.Env = append(check.Env, e.Name+"="+strings.ReplaceAll(e.Value, "/etc/freshet", dir))
	}
	text, err := check.CombinedOutput()
	return string(text), err
}

func TestConfig_IsValidForEachContainer(t *testing.T) {
	files := manifests(t)
	for _, w := range judge(files).workloads {
		for _, c := range w.containers() {
			if text, err := checked(t, files, c, t.TempDir()); err != nil || !strings.Contains(text, "the configuration is valid") {
				t.Errorf("%s/%s: got %v, want a valid configuration\n%s", w.name, c.Name, err, text)
			}
		}
	}
}

func TestConfig_MistakesAreFound(t *testing.T) {
	for _, s := range []struct{ file, old, now, fault string }{
		{"config.yaml", "require: always", "require: allways", "access.require"},
		{"config.yaml", "cacheMemory: 256MiB", "cacheMemories: 256MiB", "cacheMemories"},
		{"config.yaml", "preset: nexon", "preset: nexn", "sources.nexon.preset"},
		{"worker.yaml", "FRESHET_DATABASE_URL_FILE", "FRESHET_DATABASE_ULR_FILE", "unknown setting"},
	} {
		files := manifests(t)
		files[s.file] = strings.Replace(files[s.file], s.old, s.now, 1)
		for _, w := range judge(files).workloads {
			if w.name != "freshet-worker" {
				continue
			}
			if text, err := checked(t, files, w.pods.Spec.Containers[0], t.TempDir()); err == nil || !strings.Contains(text, s.fault) {
				t.Errorf("%s with %q: got %v, want an error with %q\n%s", s.file, s.now, err, s.fault, text)
			}
		}
	}
}
