package virtual

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
)

// sourceName and facetName are the only source and facet of the world.
const sourceName, facetName = "shop", "item"

// world is one installation and its services.
type world struct {
	seed     uint64
	entities int
	dir      string
	log      *slog.Logger
	config   app.Config
	net      *network
	kafka    *kfake.Cluster
	redis    *miniredis.Miniredis
	upstream *upstream
	oracle   *oracle
	start    time.Time
	readers  *readers
	http     *http.Server
	running  sync.WaitGroup // goroutines of the processes and services

	mu          sync.Mutex
	skew        time.Duration // difference between Redis' clock and the virtual clock
	processes   map[string]*process
	instances   int
	closed      bool
	active      map[*fault]bool
	lastFault   time.Time // end of the last fault
	kafkaFaults []*kfake.FaultHandle
	out         io.Writer // the writer for the timeline: one line for each event of the run
}

// The configuration of all processes. The call timeout is 10 s, so the lease of a slot in flight is 15
// s.
const configuration = `
kafka: {brokers: ["` + kafkaAddress + `"]}
redis: {mode: single, addresses: ["` + redisAddress + `"]}
database: {url: "postgres://unused@127.0.0.1/unused"}
sources:
  ` + sourceName + `:
    baseURL: http://` + upstreamAddress + `
    timeout: 10s
    rules:
      - {contentType: text/html, class: quota, wait: 60s}
    quota:
      backoff: 30s
      policies:
        - {name: second, limit: ` + secondText + `, window: 1s, highReserve: 1}
        - {name: minute, limit: ` + minuteText + `, window: 1m, highReserve: 30}
        - {name: day, limit: ` + dayText + `, window: day, timeZone: ` + quotaZone + `, highReserve: 1500}
        - {name: concurrent, limit: ` + inFlightText + `, window: in-flight}
    workers: {high: {maxInFlight: 8}, low: {maxInFlight: 8}, maxBodyMemory: 32MiB}
    prefetch:
      facets:
        ` + facetName + `: {mode: tiers, tiers: {hot: {every: 2h}, warm: {every: 8h}, cold: {every: 24h}}}
    facets:
      ` + facetName + `:
        documents: {item: {path: "/item?ocid={key}"}}
        freshFor: 1h
        notFoundFor: 30m
        failedFor: 2h
        cooldown: 1m
        retry: [1m, 4m, 15m]
`

// newWorld starts the services and the oracle, but no process.
func newWorld(t *testing.T, o runOptions) *world {
	w := &world{
		seed: o.seed, entities: o.entities, dir: o.dir, log: o.log, out: o.out, net: newNetwork(), start: time.Now(),
		processes: map[string]*process{}, active: map[*fault]bool{},
	}
	file := filepath.Join(w.dir, "freshet.yaml")
	must(t, os.WriteFile(file, []byte(configuration), 0o600))
	p := app.NewProcess(nil, io.Discard, io.Discard)
	p.ConfigFile = file
	var err error
	w.config, err = p.Load(app.RequiredSources)
	must(t, err)
	must(t, w.startKafka())
	must(t, w.startRedis())
	must(t, w.startUpstream())
	must(t, w.startOracle())
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) startKafka() (err error) {
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(w.net.Listen)}
	for _, t := range schemas.Topics(sourceName) {
		options = append(options, kfake.SeedTopics(partitions, t.Name))
	}
	w.kafka, err = kfake.NewCluster(options...)
	return err
}

// partitions is the number of partitions of each topic.
const partitions = 4

// startRedis starts miniredis in the virtual network. The clock of Redis shows the virtual time plus
// w.skew.
func (w *world) startRedis() error {
	w.redis = servicetest.NewMiniRedis()
	c, err := w.redis.Dial() // starts the server without a listener
	if err != nil {
		return err
	}
	_ = c.Close()
	expired := time.Now() // the time up to which keys have expired
	w.redis.SetTime(expired)
	var mu sync.Mutex
	w.redis.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
		// While a script runs, it holds the lock of miniredis, and its commands must not change the
		// time. The clock was set when the script started.
		if !w.redis.TryLock() {
			return false
		}
		w.redis.Unlock()
		mu.Lock()
		defer mu.Unlock()
		now := w.redisNow()
		w.redis.SetTime(now)
		if passed := now.Sub(expired); passed >= expiryPrecision {
			w.redis.FastForward(passed)
			expired = now
		}
		return false
	})
	l, err := w.net.Listen("tcp", redisAddress)
	if err != nil {
		return err
	}
	w.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.redis.Server().ServeConn(c)
		}
	})
	return nil
}

// expiryPrecision is the longest time for which an expired key of Redis can still be read. Expiry reads
// all keys, so it does not happen before each command.
const expiryPrecision = time.Second

func (w *world) redisNow() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.skew)
}

func (w *world) startUpstream() error {
	l, err := w.net.Listen("tcp", upstreamAddress)
	if err != nil {
		return err
	}
	w.upstream = &upstream{simulator: simulator.New(simulator.Config{Latency: normalLatency, AnyPath: true, Seed: w.seed, Identity: true})}
	w.http = &http.Server{Handler: w.upstream, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	w.running.Go(func() { _ = w.http.Serve(l) })
	return nil
}

// normalLatency is the latency of the upstream without faults.
var normalLatency = simulator.Range{Min: 30 * time.Millisecond, Max: 1700 * time.Millisecond}

// say adds a line to the timeline.
func (w *world) say(format string, args ...any) {
	line := fmt.Sprintf("%9s  ", time.Since(w.start).Truncate(time.Second)) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintln(w.out, line)
}

// since returns the virtual time from the start of the run to t.
func (w *world) since(t time.Time) time.Duration { return t.Sub(w.start).Truncate(time.Millisecond) }

// close stops all processes and services, and waits for all goroutines.
func (w *world) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	if w.readers != nil {
		w.readers.stop()
	}
	for _, name := range processNames {
		w.end(name, false)
	}
	w.upstream.simulator.Close()
	_ = w.http.Close()
	w.oracle.close()
	w.kafka.Close()
	w.net.mu.Lock()
	var open []*listener
	for _, l := range w.net.listeners {
		open = append(open, l)
	}
	w.net.mu.Unlock()
	for _, l := range open {
		_ = l.Close()
	}
	w.redis.Close()
	w.running.Wait()
}

// queryAddress returns the listen address of a query service. It reports false for a process of
// another role.
func queryAddress(name string) (string, bool) {
	number, is := strings.CutPrefix(name, "query-")
	return "127.0.0.1:808" + number, is
}

// pause waits for a duration or the end of ctx.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
