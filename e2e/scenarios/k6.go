package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// findK6 returns the path of a k6: the one that was named, or what make gets.
func findK6(ctx context.Context, root, named string) (string, error) {
	if named != "" {
		return exec.LookPath(named)
	}
	cmd := exec.CommandContext(ctx, "make", "--silent", "k6")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("make k6: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// summary is what k6 writes at its end.
type summary struct {
	Metrics map[string]struct {
		Values     map[string]float64
		Thresholds map[string]struct{ OK bool }
	}
	cpu time.Duration // that k6 took when all users were there
}

// users runs a script with these variables. begin is called when all users are there;
// it returns when they have gone.
func (s *site) users(ctx context.Context, k6, script string, variables map[string]string, begin func()) (sum summary, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return sum, err
	}
	server := &http.Server{
		ReadHeaderTimeout: harness.Timeout,
	}
	file := filepath.Join(s.Dir, "summary-"+variables["PHASE"]+".json")
	log, err := os.Create(filepath.Join(s.Dir, "k6-"+variables["PHASE"]+".log"))
	if err != nil {
		return sum, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(ctx, k6, "run", "--quiet", "--no-usage-report", "--address", "", script)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = harness.Timeout
	// Thousands of users are much that lives: to look it through again and again would
	// take a good part of the cores from what is judged.
	cmd.Env = append(os.Environ(), "SUMMARY="+file, "BEGIN=http://"+l.Addr().String(), "GOGC=400")
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return sum, err
	}
	var made atomic.Int64 // what it took to make the users
	server.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		made.Store(int64(harness.CPUTime(cmd.Process.Pid)))
		begin()
	})
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()
	err = cmd.Wait()
	sum.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - time.Duration(made.Load())
	const crossed = 99 // a threshold; the summary says which
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == crossed {
		err = nil
	}
	if err != nil {
		return sum, fmt.Errorf("k6: %w; see %s", err, log.Name())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return sum, err
	}
	return sum, json.Unmarshal(text, &sum)
}
