package browser

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// timeout bounds every wait for something that must happen.
const timeout = 30 * time.Second

// binaries is the folder of the programs that the tests start.
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
	freshet = sync.OnceValues(func() (string, error) { return build("freshet", "build", "./cmd/freshet") })
	console = sync.OnceValues(func() (string, error) { return build("console.test", "test -c", "./console") })
)

// build builds a program of the parent module and returns its path.
func build(name, command, pack string) (string, error) {
	path := filepath.Join(binaries, name)
	c := exec.Command("go", append(strings.Fields(command), "-o", path, pack)...)
	c.Dir = filepath.Join("..", "..")
	if text, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s %s: %w\n%s", command, pack, err, text)
	}
	return path, nil
}

// start runs a program until the test ends and returns its stdout up to the first line that
// begins with ready. end makes the program end; it must then exit with 0.
func start(t *testing.T, program func() (string, error), end func(*exec.Cmd, io.Closer) error, ready string, args ...string) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	var stderr bytes.Buffer
	c := exec.CommandContext(t.Context(), path, args...) // the context ends before the cleanup begins
	c.Stdout, c.Stderr, c.WaitDelay = writer, &stderr, timeout
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Cancel = func() error { return end(c, stdin) }
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // its exit code says more
		_ = writer.Close()
	}()
	t.Cleanup(func() {
		<-ended
		if got := c.ProcessState.ExitCode(); got != 0 {
			t.Errorf("%s: got exit code %d, want 0:\n%s", c, got, stderr.String())
		}
	})
	var text strings.Builder
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), ready) {
			go func() { _, _ = io.Copy(io.Discard, reader) }()
			return text.String()
		}
	}
	<-ended
	t.Fatalf("%s ended before it printed %q:\n%s%s", c, ready, text.String(), stderr.String())
	return ""
}

// dev is a running `freshet dev`.
type dev struct {
	t   *testing.T
	url string
}

func startDev(t *testing.T, args ...string) dev {
	t.Helper()
	interrupt := func(c *exec.Cmd, _ io.Closer) error { return c.Process.Signal(os.Interrupt) }
	text := start(t, freshet, interrupt, "Ready in", append([]string{"dev", "--listen", "127.0.0.1:0"}, args...)...)
	found := regexp.MustCompile(`Query API\s+(http://[0-9.:]+)`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("freshet dev printed no address of the query API:\n%s", text)
	}
	return dev{t, found[1]}
}

// startConsoles starts the consoles on fakes of package console and returns their URLs:
// "busy", "still" and "login".
func startConsoles(t *testing.T) map[string]string {
	t.Helper()
	closeStdin := func(_ *exec.Cmd, stdin io.Closer) error { return stdin.Close() }
	text := start(t, console, closeStdin, "serving ", "-test.run=^TestServe_ConsolesOnFakes$", "-serve")
	_, urls, _ := strings.Cut(text, "serving ")
	var consoles map[string]string
	if err := json.Unmarshal([]byte(urls), &consoles); err != nil {
		t.Fatalf("%s: %v", text, err)
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

// read reads a character and returns the status of the response.
func (d dev) read(key string) (status int) {
	d.t.Helper()
	status, _ = request(d.t, http.MethodGet, d.url+"/v1/nexon/character/"+key)
	return status
}

// metric returns the sum of the samples of a metric whose labels contain the text.
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

// until waits until the condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(timeout); !holds(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s did not happen within %v", what, timeout)
		}
	}
}
