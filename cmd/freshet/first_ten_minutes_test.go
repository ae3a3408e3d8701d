package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// session runs the commands of docs/first-ten-minutes.md in an empty folder.
type session struct {
	*testing.T
	env       []string
	addresses []string // pairs: an address in docs/first-ten-minutes.md, and the address that replaces it in this test
}

// replace replaces the addresses of docs/first-ten-minutes.md in a text by the addresses of this
// test. If `toPage` is true, it replaces the addresses of this test by the addresses of the
// document instead.
func (s *session) replace(text string, toPage bool) string {
	for i := 0; i < len(s.addresses); i += 2 {
		from, to := s.addresses[i], s.addresses[i+1]
		if toPage {
			from, to = to, from
		}
		text = strings.ReplaceAll(text, from, to)
	}
	return text
}

// words splits a command line at spaces outside of double quotes.
func words(line string) (all []string) {
	for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		all = append(all, strings.Trim(word, `"`))
	}
	return all
}

// run runs one command line and returns its output, with the addresses that
// docs/first-ten-minutes.md contains.
func (s *session) run(line string) string {
	s.Helper()
	args := words(s.replace(line, false))
	var out lockedBuffer
	switch {
	case args[0] == "export":
		name, value, _ := strings.Cut(args[1], "=")
		s.Setenv(name, value)
		s.env = append(s.env, args[1])
	case args[0] == "cat":
		text, err := os.ReadFile(args[1])
		if err != nil {
			s.Fatal(err)
		}
		_, _ = out.Write(text)
	case args[0] == "curl":
		_, body := (&dev{T: s.T, client: http.DefaultClient}).do(http.MethodGet, args[len(args)-1])
		_, _ = out.Write(append(body, '\n'))
	case args[0] != "freshet":
		s.Fatalf("command: got %q, want export, cat, curl or freshet", line)
	case args[1] == "simulate":
		s.addresses = append(s.addresses, "127.0.0.1:9090", s.simulate(args[1:]))
	case args[1] == "dev":
		d := startDev(s.T, args[2:]...)
		s.addresses = append(s.addresses, "127.0.0.1:8080", strings.TrimPrefix(d.api, "http://"))
		_, _ = out.Write([]byte(d.text))
	default:
		run(s.Context(), args[1:], s.env, &out, &out)
	}
	return s.replace(out.String(), true)
}

// simulate starts `freshet simulate` with these arguments and returns the simulator's address.
func (s *session) simulate(args []string) string {
	ctx, cancel := context.WithCancel(context.Background())
	reader, writer := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx, append(args, "--listen", "127.0.0.1:0"), nil, writer, writer)
		_ = writer.Close()
	}()
	first := make([]byte, 200)
	n, err := reader.Read(first)
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	s.Cleanup(func() { cancel(); <-done; http.DefaultClient.CloseIdleConnections() })
	address := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).FindString(string(first[:n]))
	if err != nil || address == "" {
		s.Fatalf("simulator: got %q, %v; want its address", first[:n], err)
	}
	return address
}

// lockedBuffer is a buffer for stdout and stderr together.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// varying matches the parts of an output that differ between two runs: durations, times, sizes of pages.
var varying = []*regexp.Regexp{
	regexp.MustCompile(`\b\d+(\.\d+)?( ms|µs|ms)\b`), regexp.MustCompile(`\b\d+h\d+m\d+s\b|\b\d+m\d+s\b|\b1h\b`), regexp.MustCompile(`\b1\d{9}\b`),
	regexp.MustCompile(`\b\d+\.\d kB\b`), regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), regexp.MustCompile(`"(estimatedWaitMs|lastUpdatedAt)":[^,}]*`),
}

// fixed returns an output with each varying part replaced by N, and without repeated spaces.
func fixed(text string) string {
	for _, v := range varying {
		text = v.ReplaceAllString(text, "N")
	}
	return regexp.MustCompile(` +`).ReplaceAllString(strings.TrimSpace(text), " ")
}

// anyLines returns a regular expression for the expected output of a command. A line "…" in the
// expected output matches any number of lines; all other text matches only itself.
func anyLines(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), "…\n", "(?s:.*)\n?") + "$")
}

// The commands in docs/first-ten-minutes.md run one after the other, as a reader runs them. With
// -update, the test writes their outputs into that document.
func TestDocs_FirstTenMinutesSessionIsTrue(t *testing.T) {
	page, err := filepath.Abs(filepath.Join(root, "docs", "first-ten-minutes.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := readDoc(t, "docs", "first-ten-minutes.md")
	t.Chdir(t.TempDir())
	s := &session{T: t}
	commands := 0
	written := regexp.MustCompile("(?ms)^```console\n(.*?)^```$").ReplaceAllStringFunc(text, func(block string) string {
		var out strings.Builder
		out.WriteString("```console\n")
		body := strings.TrimSuffix(strings.TrimPrefix(block, "```console\n"), "```")
		for _, step := range regexp.MustCompile(`(?m)^\$ `).Split(body, -1)[1:] {
			line, want, _ := strings.Cut(step, "\n")
			got := s.run(line)
			commands++
			elided := strings.Contains(want, "…\n") && strings.HasPrefix(want, "…")
			switch {
			case elided && !anyLines(fixed(want)+"\n").MatchString(fixed(got)+"\n"):
				t.Errorf("%s: got\n%s\nwant\n%s", line, got, want)
			case !elided && !*update && fixed(got) != fixed(want):
				t.Errorf("%s: got\n%s\nwant\n%s\nwrite the outputs with: go test ./cmd/freshet -run FirstTenMinutes -update", line, got, want)
			}
			if !elided {
				want = got
			}
			fmt.Fprintf(&out, "$ %s\n%s", line, want)
		}
		return out.String() + "```"
	})
	if commands < 12 {
		t.Errorf("commands: got %d, want at least 12", commands)
	}
	if *update {
		if err := os.WriteFile(page, []byte(written), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
