package harness

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// startShell runs a shell script as a process of a site and waits until it prints "ready".
func startShell(t *testing.T, script string) *Process {
	t.Helper()
	s := &Site{Out: io.Discard, Dir: t.TempDir()}
	t.Cleanup(func() { s.Close(false) })
	p, err := s.StartProgram(t.Context(), "shell", "(ready) at ([0-9.:]+)", nil, "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestStartProgram_FindsTheAddress(t *testing.T) {
	p := startShell(t, "echo starting; echo ready at 127.0.0.1:80; exec sleep 60")
	if got, want := p.URL(), "http://127.0.0.1:80"; got != want {
		t.Errorf("URL: got %s, want %s", got, want)
	}
}

func TestStartProgram_FailsIfTheProcessEndsFirst(t *testing.T) {
	s := &Site{Out: io.Discard, Dir: t.TempDir()}
	defer s.Close(false)
	if _, err := s.StartProgram(t.Context(), "shell", "ready", nil, "/bin/sh", "-c", "exit 3"); err == nil {
		t.Error("error: got none, want one")
	}
}

func TestProcess_KeepsOnlyItsWarnings(t *testing.T) {
	p := startShell(t, "echo level=INFO ready at 127.0.0.1:80; echo level=WARN one; echo level=DEBUG two; echo panic: three")
	<-p.Done
	if got, want := p.Warnings(), []string{"level=WARN one", "panic: three"}; !slices.Equal(got, want) {
		t.Errorf("warnings: got %q, want %q", got, want)
	}
}

func TestProcess_TerminateReturnsTheExitCode(t *testing.T) {
	p := startShell(t, "trap 'exit 7' TERM; echo ready at 127.0.0.1:80; while :; do sleep 0.05; done")
	_, code, err := p.Terminate(false)
	if err != nil || code != 7 {
		t.Errorf("Terminate: got %d, %v, want 7", code, err)
	}
}

func TestProcess_KillEndsProcessThatIgnoresSIGTERM(t *testing.T) {
	p := startShell(t, "trap '' TERM; echo ready at 127.0.0.1:80; while :; do sleep 0.05; done")
	p.Kill()
	if got := p.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != syscall.SIGKILL {
		t.Errorf("signal: got %v, want %v", got, syscall.SIGKILL)
	}
}

func TestSite_CloseStopsProcessesAndRemovesDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &Site{Out: io.Discard, Dir: dir}
	p, err := s.StartProgram(t.Context(), "shell", "ready", nil, "/bin/sh", "-c", "echo ready; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	s.Close(false)
	<-p.Done
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("stat of the directory after Close: got %v, want a not-exist error", err)
	}
}

func TestStartProgram_ContinuesAfterLongLine(t *testing.T) {
	s := &Site{Out: io.Discard, Dir: t.TempDir()}
	defer s.Close(false)
	p, err := s.StartProgram(t.Context(), "shell", "ready", nil, "/bin/sh", "-c", "echo ready; head -c 1000000 /dev/zero | tr '\\0' x; echo; echo the end")
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done
	text, err := os.ReadFile(filepath.Join(s.Dir, "shell.log"))
	if err != nil || !strings.HasSuffix(string(text), "\nthe end\n") {
		t.Errorf("log: got %d bytes, %v, want a log that ends with the last line", len(text), err)
	}
}
