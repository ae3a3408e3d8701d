package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source/nexon"
	"github.com/freshet/freshet/topics"
)

// fleet is the product as it is run in production: a process for each role, on
// real PostgreSQL, Redis and Kafka, and the simulator as a process of its own.
type fleet struct {
	testing.TB
	binary   string
	source   string
	config   string // the configuration file
	env      []string
	database string
	upstream string
	client   *http.Client
	admin    *kadm.Client
	db       *pgx.Conn
	muted    string // what is logged with it is not shown
}

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "freshet-test-")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "freshet")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
})

// newFleet starts the simulator with these flags and prepares the services.
// Workers and query services are started by the test.
func newFleet(t testing.TB, redisCluster bool, simulate ...string) *fleet {
	t.Helper()
	f := &fleet{TB: t, source: servicetest.Name("nexon"), database: servicetest.Postgres(t)}
	redis := "{mode: single, addresses: [\"" + servicetest.RedisAddress(t) + "\"]}"
	if redisCluster {
		redis = "{mode: cluster, addresses: [\"" + strings.Join(servicetest.RedisClusterAddresses(t), `", "`) + "\"]}"
	}
	brokers := servicetest.Kafka(t)
	var err error
	if f.binary, err = build(); err != nil {
		t.Fatal(err)
	}
	f.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}, Timeout: patience}
	t.Cleanup(f.client.CloseIdleConnections)
	f.upstream = f.start("upstream at (http://[0-9.:]+)", append([]string{"simulate", "--listen", "127.0.0.1:0"}, simulate...)...).found

	preset := strings.Replace(string(nexon.Config), "https://open.api.nexon.com", f.upstream, 1)
	f.config = filepath.Join(t.TempDir(), "freshet.yaml")
	text := fmt.Sprintf("kafka: {brokers: [%q]}\nredis: %s\nsources:\n  %s:\n    %s", strings.Join(brokers, `", "`), redis, f.source,
		strings.ReplaceAll(preset, "\n", "\n    "))
	if err := os.WriteFile(f.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.env = []string{"NEXON_API_KEY=a-key", "FRESHET_DATABASE_URL=" + f.database, "FRESHET_CONFIG=" + f.config}

	f.must("migrate", "up")
	f.must("topics", "ensure")
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	f.admin = kadm.NewClient(client)
	t.Cleanup(func() {
		for _, topic := range schemas.Topics(f.source) {
			_, _ = f.admin.DeleteTopic(context.Background(), topic.Name)
		}
	})
	if f.db, err = pgx.Connect(t.Context(), f.database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.db.Close(context.Background()) })
	return f
}

// process is a running role; found is what was looked for in what it printed.
type process struct {
	*exec.Cmd
	found string
	done  chan struct{}
}

// start starts a role and waits until it prints what the pattern says.
func (f *fleet) start(pattern string, args ...string) *process {
	f.Helper()
	p := &process{Cmd: exec.CommandContext(context.Background(), f.binary, args...), done: make(chan struct{})}
	p.Env = append(os.Environ(), f.env...)
	reader, writer := io.Pipe()
	p.Stdout, p.Stderr = writer, writer
	if err := p.Start(); err != nil {
		f.Fatal(err)
	}
	go func() { _ = p.Wait(); _ = writer.Close() }()
	found := make(chan string, 1)
	go func() {
		defer close(p.done)
		want := regexp.MustCompile(pattern)
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			if m := want.FindStringSubmatch(lines.Text()); m != nil && p.found == "" {
				p.found = m[len(m)-1]
				found <- p.found
			} else if !strings.Contains(lines.Text(), "level=INFO") && (f.muted == "" || !strings.Contains(lines.Text(), f.muted)) {
				fmt.Fprintf(os.Stderr, "%s: %s\n", args[0], lines.Text())
			}
		}
		close(found)
	}()
	f.Cleanup(func() { p.stop(f.TB) })
	select {
	case _, ok := <-found:
		if !ok {
			f.Fatalf("%v ended before it was ready", args)
		}
	case <-time.After(patience):
		f.Fatalf("%v is not ready within %v", args, patience)
	}
	return p
}

// stop asks the process to end, and waits for it.
func (p *process) stop(t testing.TB) {
	t.Helper()
	_ = p.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Errorf("%v does not stop", p.Args)
		_ = p.Process.Kill()
	}
}

// must runs a command of the fleet to its end.
func (f *fleet) must(args ...string) string {
	f.Helper()
	c := exec.CommandContext(f.Context(), f.binary, args...)
	c.Env = append(os.Environ(), f.env...)
	out, err := c.CombinedOutput()
	if err != nil {
		f.Fatalf("freshet %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (f *fleet) query(env ...string) string {
	f.Helper()
	before := f.env
	f.env = append(append([]string(nil), before...), env...)
	defer func() { f.env = before }()
	return "http://" + f.start(`query service is up.* listen=([0-9.:]+)`, "query", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0").found
}

func (f *fleet) worker() *process {
	f.Helper()
	return f.start("worker is up", "worker", "--ops-listen", "127.0.0.1:0")
}

// ask reads all keys at once, from so many readers, and returns how many answers
// had each freshness.
func (f *fleet) ask(api string, keys []string, readers int) map[string]int {
	f.Helper()
	return f.askAs(api, keys, readers, "")
}

// askAs is ask by readers that have snapshots with this tag already.
func (f *fleet) askAs(api string, keys []string, readers int, tag string) map[string]int {
	f.Helper()
	work := make(chan string, len(keys))
	for _, key := range keys {
		work <- key
	}
	close(work)
	var mu sync.Mutex
	count := map[string]int{}
	var first error
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for key := range work {
				freshness, err := f.freshness(api, key, tag)
				// Who is asked to come back does so: an overloaded machine may have to ask.
				for again := 0; errors.Is(err, errUnavailable) && again < 10; again++ {
					<-time.After(time.Second)
					freshness, err = f.freshness(api, key, tag)
				}
				mu.Lock()
				count[freshness]++
				if err != nil && first == nil {
					first = fmt.Errorf("%s: %w", key, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if first != nil {
		f.Errorf("%d of %d reads failed, the first: %v", count[""], len(keys), first)
	}
	return count
}

var errUnavailable = errors.New("503")

func (f *fleet) freshness(api, key, tag string) (string, error) {
	req, err := http.NewRequestWithContext(f.Context(), http.MethodGet, api+"/v1/"+f.source+"/character/"+key, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("If-None-Match", tag)
	resp, err := f.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode == http.StatusNotModified {
		if strings.Contains(resp.Header.Get("Cache-Control"), "max-age=0,") {
			return "STALE", nil
		}
		return "FRESH", nil
	}
	if resp.StatusCode == http.StatusServiceUnavailable {
		return "", fmt.Errorf("%w: %.200s", errUnavailable, text)
	}
	const member = `"freshness":"`
	i := bytes.LastIndex(text, []byte(member)) // behind the snapshot
	if resp.StatusCode >= 500 || i < 0 {
		return "", fmt.Errorf("%d %.200s", resp.StatusCode, text)
	}
	freshness, _, _ := strings.Cut(string(text[i+len(member):]), `"`)
	return freshness, nil
}

// until waits until the condition holds.
func (f *fleet) until(limit time.Duration, what string, holds func() bool) {
	f.Helper()
	deadline := time.After(limit)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-deadline:
			f.Fatalf("%s did not happen within %v", what, limit)
		}
	}
}

// one returns the single number that a query gives.
func (f *fleet) one(sql string, args ...any) (n int64) {
	f.Helper()
	if err := f.db.QueryRow(f.Context(), sql, args...).Scan(&n); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (f *fleet) stats() (s simulator.Stats) {
	f.Helper()
	f.call(http.MethodGet, "/_stats", nil, &s)
	return s
}

// call calls one of the simulator's own endpoints.
func (f *fleet) call(method, path string, body, into any) {
	f.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		f.Fatal(err)
	}
	req, err := http.NewRequestWithContext(f.Context(), method, f.upstream+path, bytes.NewReader(text))
	if err != nil {
		f.Fatal(err)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		f.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, answer, err)
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			f.Fatal(err)
		}
	}
}

// behind returns how many records are not committed, in both lanes.
func (f *fleet) behind() int64 {
	f.Helper()
	lags, err := topics.Measure(f.Context(), f.admin, f.source)
	if err != nil {
		f.Log(err) // a coordinator that moves; the next look tells
		return -1
	}
	return lags[0].Records + lags[1].Records
}

// letters returns how many dead letters there are.
func (f *fleet) letters() (n int64) {
	f.Helper()
	ends, err := f.admin.ListEndOffsets(f.Context(), schemas.DeadLetterTopic(f.source))
	if err = errors.Join(err, ends.Error()); err != nil {
		f.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}
