package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is an operating-system process that a Site has started, such as a query service or a Redis
// server.
type Process struct {
	*exec.Cmd
	Name    string
	Match   string        // text that matched the last group of the pattern passed to Start
	Address string        // address of a Redis server; empty for other processes
	Done    chan struct{} // channel that is closed when the process has ended

	mu       sync.Mutex
	warnings []string
}

// maxWarnings is the maximum number of lines that Warnings returns.
const maxWarnings = 20

// Warnings returns the last output lines that do not have the level INFO or DEBUG. It returns at
// most maxWarnings lines.
func (p *Process) Warnings() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.warnings)
}

func (p *Process) keepWarning(line string) {
	if strings.Contains(line, "level=INFO") || strings.Contains(line, "level=DEBUG") {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.warnings = append(p.warnings, line); len(p.warnings) > maxWarnings {
		p.warnings = p.warnings[1:]
	}
}

// URL returns the URL of the listen address that Start found in the output.
func (p *Process) URL() string { return "http://" + p.Match }

// Start starts freshet and waits until it prints a line that matches the pattern. The output
// is appended to the file name.log in the site's directory.
func (s *Site) Start(ctx context.Context, name, pattern string, env []string, args ...string) (*Process, error) {
	return s.StartProgram(ctx, name, pattern, env, s.Binary, args...)
}

// StartProgram is like Start, but runs the given program instead of freshet.
func (s *Site) StartProgram(ctx context.Context, name, pattern string, env []string, program string, args ...string) (*Process, error) {
	// Append to the log file, because a process with this name may have run before.
	log, err := os.OpenFile(filepath.Join(s.Dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// The end of ctx does not end the process. Close ends all processes, in a fixed order.
	p := &Process{Cmd: exec.CommandContext(context.WithoutCancel(ctx), program, args...), Name: name, Done: make(chan struct{})}
	p.Env = append(os.Environ(), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the process gets its own process group, so that Ctrl-C in a terminal ends only the test
	reader, writer := io.Pipe()
	p.Stdout, p.Stderr = writer, writer
	if err := p.Start(); err != nil {
		_ = log.Close()
		return nil, err
	}
	go func() { _ = p.Wait(); _ = writer.Close() }()
	found := make(chan string, 1)
	go func() {
		defer close(p.Done)
		defer func() { _ = log.Close() }()
		want := regexp.MustCompile(pattern)
		seen := false
		for lines := bufio.NewScanner(io.TeeReader(reader, log)); lines.Scan(); {
			if m := want.FindStringSubmatch(lines.Text()); m != nil && !seen {
				seen = true
				found <- m[len(m)-1]
				continue
			}
			p.keepWarning(lines.Text())
		}
		_, _ = io.Copy(log, reader) // if a line was too long for the scanner, read the rest: the process would block if its output were not read
		close(found)
	}()
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	s.OnClose(p.Stop)
	limit := time.NewTimer(Timeout)
	defer limit.Stop()
	select {
	case text, ok := <-found:
		if !ok {
			return nil, fmt.Errorf("%s ended before it was ready", name)
		}
		p.Match = text
		return p, nil
	case <-limit.C:
		return nil, fmt.Errorf("%s is not ready within %v", name, Timeout)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Stop sends SIGTERM, then SIGKILL after Timeout, and waits for the process to end.
func (p *Process) Stop() {
	_ = p.Process.Signal(syscall.SIGTERM)
	limit := time.NewTimer(Timeout)
	defer limit.Stop()
	select {
	case <-p.Done:
	case <-limit.C:
		p.Kill()
	}
}

// Kill sends SIGKILL and waits for the process to end.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	<-p.Done
}

// Terminate sends SIGTERM. It returns the time until the process ended, and the exit code of the
// process. If `repeat` is true, it sends SIGTERM every 200 ms until the end.
func (p *Process) Terminate(repeat bool) (took time.Duration, code int, err error) {
	began, limit := time.Now(), time.After(Timeout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		if n == 0 || repeat {
			_ = p.Process.Signal(syscall.SIGTERM)
		}
		select {
		case <-p.Done:
			return time.Since(began), p.ProcessState.ExitCode(), nil
		case <-tick.C:
		case <-limit:
			return 0, 0, fmt.Errorf("%s does not end within %v after SIGTERM", p.Name, Timeout)
		}
	}
}

// Freeze suspends the process with SIGSTOP until Continue.
func (p *Process) Freeze() error { return p.Process.Signal(syscall.SIGSTOP) }

// Continue resumes a frozen process with SIGCONT.
func (p *Process) Continue() error { return p.Process.Signal(syscall.SIGCONT) }

// FreezeFor freezes the process for a time.
func (p *Process) FreezeFor(ctx context.Context, length time.Duration) error {
	if err := p.Freeze(); err != nil {
		return err
	}
	err := Pause(ctx, length)
	return errors.Join(err, p.Continue())
}

// Processes returns all processes that the site has started, running and ended.
func (s *Site) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.processes)
}

// Latest returns the most recently started process with this name, or nil if there is none.
func (s *Site) Latest(name string) *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.processes) {
		if p.Name == name {
			return p
		}
	}
	return nil
}
