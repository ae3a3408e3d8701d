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

// findK6 returns the path of k6: the program that the argument `named` names or, if that argument is
// empty, the program that "make k6" installs.
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

// summary is the summary that k6 writes at its end.
type summary struct {
	Metrics map[string]struct {
		Values     map[string]float64
		Thresholds map[string]struct{ OK bool }
	}
	cpu time.Duration // processor time that k6 used after all users were started
}

// users runs a k6 script with these environment variables until all of its virtual users have
// ended. It calls the function `begin` when all users are started.
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
	// The heap of thousands of virtual users has about 1 GB. On two busy cores one garbage collection
	// took 5 s, in which the users themselves had to do half of the work, so k6 measured its own pauses.
	// k6 collects garbage only when it needs more than 6 GB.
	cmd.Env = append(os.Environ(), "SUMMARY="+file, "BEGIN=http://"+l.Addr().String(), "GOGC=off", "GOMEMLIMIT=6GiB")
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return sum, err
	}
	var setup atomic.Int64 // processor time that k6 used until all users were started
	server.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		setup.Store(int64(harness.CPUTime(cmd.Process.Pid)))
		begin()
	})
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()
	err = cmd.Wait()
	sum.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - time.Duration(setup.Load())
	const crossed = 99 // k6's exit code for a missed threshold; the summary names the threshold
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
