package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Root returns the root directory of freshet's main module. It searches the working
// directory and its parents.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "freshet", "main.go")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no cmd/freshet in the working directory or its parents; run this in the repository's folder e2e")
		}
	}
}

// Build builds freshet into a directory and returns the program's path.
func Build(ctx context.Context, dir string) (string, error) {
	return build(ctx, filepath.Join(dir, "freshet"), "./cmd/freshet", "build")
}

// BuildTest builds the test binary of a package of the main module, such as ./console, and
// returns the program's path.
func BuildTest(ctx context.Context, dir, pack string) (string, error) {
	return build(ctx, filepath.Join(dir, filepath.Base(pack)+".test"), pack, "test", "-c")
}

// build runs `go command -o program pack` in the main module.
func build(ctx context.Context, program, pack string, command ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, "go", append(command, "-o", program, pack)...)
	c.Dir = root
	if text, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s %s: %w\n%s", command[0], pack, err, text)
	}
	return program, nil
}
