package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/freshet/freshet/e2e/harness"
)

// timeout is the maximum time that a test waits for an expected event.
const timeout = harness.Timeout

// binaries is the directory of the programs that the tests build and start.
var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "freshet-browser-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// Each program is built once, by the first test that needs it.
var (
	freshet = sync.OnceValues(func() (string, error) { return harness.Build(context.Background(), binaries) })
	console = sync.OnceValues(func() (string, error) { return harness.BuildTest(context.Background(), binaries, "./console") })
)

// start starts a program and waits until it prints a line that matches the pattern. At the end of the
// test it sends SIGTERM, and the program must exit with code 0.
func start(t *testing.T, program func() (string, error), pattern string, args ...string) *harness.Process {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	s := &harness.Site{Out: t.Output(), Dir: t.TempDir()}
	t.Cleanup(func() { s.Close(false) })
	name := filepath.Base(path)
	printed := func() string {
		text, _ := os.ReadFile(filepath.Join(s.Dir, name+".log"))
		return string(text)
	}
	p, err := s.StartProgram(t.Context(), name, pattern, nil, path, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, printed())
	}
	t.Cleanup(func() {
		if _, code, err := p.Terminate(false); err != nil || code != 0 {
			t.Errorf("%s: got exit code %d, %v, want 0:\n%s", name, code, err, printed())
		}
	})
	return p
}

// dev is a running `freshet dev`.
type dev struct {
	t   *testing.T
	url string
}

func startDev(t *testing.T, args ...string) dev {
	t.Helper()
	p := start(t, freshet, `Query API\s+http://([0-9.:]+)`, append([]string{"dev", "--listen", "127.0.0.1:0"}, args...)...)
	return dev{t, p.URL()}
}

// startConsoles starts three consoles with fake data, from the test binary of package console. It
// returns the URLs of "busy", "still" and "login".
func startConsoles(t *testing.T) map[string]string {
	t.Helper()
	p := start(t, console, "^serving (.*)", "-test.run=^TestServe_ConsolesOnFakes$", "-serve")
	var consoles map[string]string
	if err := json.Unmarshal([]byte(p.Match), &consoles); err != nil {
		t.Fatalf("%s: %v", p.Match, err)
	}
	return consoles
}

// request sends a request and returns the status and body of its response.
func request(t *testing.T, method, url string) (int, []byte) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, text
}

// read reads the entity with this key and returns the HTTP status.
func (d dev) read(key string) (status int) {
	d.t.Helper()
	status, _ = request(d.t, http.MethodGet, d.url+"/v1/nexon/character/"+key)
	return status
}

// metric returns the sum of the samples of a metric whose labels contain the text `label`.
func (d dev) metric(name, label string) (sum float64) {
	d.t.Helper()
	_, text := request(d.t, http.MethodGet, d.url+"/metrics")
	for _, line := range regexp.MustCompile(`(?m)^freshet_`+name+`\{.*$`).FindAllString(string(text), -1) {
		if !strings.Contains(line, label) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			d.t.Fatalf("%s: %v", line, err)
		}
		sum += value
	}
	return sum
}

// until waits until the condition holds. After the timeout it fails the test.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if err := harness.Until(t.Context(), timeout, what, func() (bool, error) { return holds(), nil }); err != nil {
		t.Fatal(err)
	}
}
