//go:build unix

package limiter_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// The reference contract: 500 calls a second, of which 450 are used, 100 of them for HIGH.
var contract = limiter.Config{Jitter: 10 * time.Millisecond, Policies: []limiter.Policy{{
	Name: "second", Limit: 500, Window: limiter.Window(time.Second), Target: 450, HighReserve: limiter.Reserve{Calls: 100},
}}}

// newLimiter is the only function of these tests that makes a limiter.
func newLimiter(source string, rdb redis.UniversalClient, reg prometheus.Registerer) (*limiter.Limiter, error) {
	return limiter.New(source, contract, limiter.Deps{
		Redis: rdb, Process: strconv.Itoa(os.Getpid()), Log: slog.New(slog.DiscardHandler), Metrics: reg,
	})
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// connect returns a client with the settings of package app, but with only one connection attempt
// per call; the client library's default is five.
func connect(dial dialer, addresses ...string) redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: addresses, IsClusterMode: len(addresses) > 1, Dialer: dial,
		MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
}

// counters are the values of the counters of one process. The values of a counter with labels are
// added.
type counters map[string]float64

const (
	acquiredTotal = "rate_limiter_acquired_total"
	lapsedTotal   = "rate_limiter_lapsed_total"
	callsTotal    = "rate_limiter_redis_calls_total"
	failuresTotal = "rate_limiter_redis_failures_total"
	dialsTotal    = "dials" // connection attempts to Redis, counted by the worker
)

func count(reg prometheus.Gatherer) (counters, error) {
	families, err := reg.Gather()
	all := counters{}
	for _, family := range families {
		for _, m := range family.Metric {
			all[family.GetName()] += m.GetCounter().GetValue()
		}
	}
	return all, err
}

// jobFlag makes the test binary run as a worker process. Its value is the job of that process.
var jobFlag = flag.String("limiter.job", "", "run as a worker process with this job (JSON)")

type job struct {
	Source, Redis, Upstream string
	High, Low               int // numbers of goroutines that make calls of the lanes HIGH and LOW
}

var replaceScript = servicetest.LimiterScriptFlag()

func TestMain(m *testing.M) {
	flag.Parse()
	replaceScript()
	text := *jobFlag
	if text == "" {
		os.Exit(m.Run())
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = work(j)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// worker calls the upstream as often as its limiter allows.
type worker struct {
	limiter   *limiter.Limiter
	transport *http.Transport
	redis     atomic.Pointer[string] // address of Redis, as a name service would return it
	dials     atomic.Int64
}

// work runs a worker until its standard input ends. Each input line contains the new address of
// Redis, or nothing. The worker replies with its counters.
func work(j job) error {
	w := &worker{transport: &http.Transport{MaxIdleConnsPerHost: j.High + j.Low, DisableCompression: true}}
	w.redis.Store(&j.Redis)
	reg := prometheus.NewRegistry()
	l, err := newLimiter(j.Source, connect(w.dial, j.Redis), reg)
	if err != nil {
		return err
	}
	w.limiter = l
	ctx := context.Background() // this context is never cancelled, because the test kills the process
	go func() { _ = l.Run(ctx) }()
	for range j.High {
		go w.call(ctx, schemas.High, j.Upstream)
	}
	for range j.Low {
		go w.call(ctx, schemas.Low, j.Upstream)
	}
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if address := lines.Text(); address != "" {
			w.redis.Store(&address)
		}
		all, err := count(reg)
		if err != nil {
			return err
		}
		all[dialsTotal] = float64(w.dials.Load())
		if err := out.Encode(all); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (w *worker) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	w.dials.Add(1)
	var d net.Dialer
	return d.DialContext(ctx, network, *w.redis.Load())
}

// call sends one call per permit, forever.
func (w *worker) call(ctx context.Context, lane schemas.Lane, upstream string) {
	acquire := w.limiter.Acquire
	for {
		permit, err := acquire(ctx, lane, limiter.Call{})
		if err != nil {
			fmt.Fprintln(os.Stderr, "acquire:", err)
			return
		}
		acquire = w.limiter.Acquire
		if !w.send(ctx, permit, upstream+"/maplestory/v1/id?character_name="+string(lane)) {
			acquire = w.limiter.Reacquire
		}
	}
}

// send makes one request and reports whether it was sent. Like package source it spends the
// permit after connecting and before writing.
func (w *worker) send(ctx context.Context, permit *limiter.Permit, url string) (sent bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer permit.Release()
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if permit.Spend() { // Spend also returns false if the HTTP transport repeats a request
			sent = true
			return
		}
		cancel()
		_ = got.Conn.Close()
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, url, http.NoBody)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return false
	}
	resp, err := w.transport.RoundTrip(req)
	if err != nil {
		return sent
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body) // read the whole body, so that the connection can be reused
	return sent
}

// process is a worker process as seen by the test.
type process struct {
	*exec.Cmd
	t       testing.TB
	stdin   io.WriteCloser
	answers *json.Decoder
	stderr  bytes.Buffer
}

// newProcess starts a worker process, which ends with the test.
func newProcess(t testing.TB, j job) *process {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.CommandContext(context.Background(), self, "-limiter.job="+string(text)), t: t}
	p.Cmd.Stderr = &p.stderr
	if p.stdin, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.answers = json.NewDecoder(stdout)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && p.stderr.Len() > 0 {
			t.Logf("stderr of worker %d:\n%s", p.Process.Pid, strings.TrimSpace(p.stderr.String()))
		}
	})
	return p
}

// kill ends the process like a crash, even if it is suspended.
func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

func (p *process) signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// counters requests the counters of the worker.
func (p *process) counters() counters {
	p.t.Helper()
	return p.moveTo("")
}

// moveTo sends the process another address of Redis.
func (p *process) moveTo(redis string) (c counters) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.stdin, redis)
	if err == nil {
		err = p.answers.Decode(&c)
	}
	if err != nil {
		p.t.Fatalf("a worker does not answer: %v", err)
	}
	return c
}
