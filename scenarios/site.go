package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/nexon"
)

// site is an installation of the scenario's own on the real services.
type site struct {
	out      io.Writer
	dir      string // configurations and logs
	binary   string
	source   string
	database string
	broker   string
	redis    *process
	kafka    *slowKafka
	ways     struct{ redis, database *proxy } // over which processes are led, if they are not nil
	upstream string                           // where the simulator is
	latency  string                           // of its answers, as it was started
	facets   map[string]string
	tuned    *strings.Replacer // what is said of facets otherwise, if it is not nil
	token    string            // an administrator's; without one nobody is asked who they are
	port     int               // that is tried next
	cluster  []string          // addresses of a Redis Cluster, instead of the Redis of its own
	results  []result
	mu       sync.Mutex // of what follows: several may be started at once
	// processes that run, or did.
	processes []*process
	closers   []func()
}

const upstreamReady = `upstream at (http://[0-9.:]+)`

// newSite prepares a database, a Redis and the way to Kafka. What it returns is to be
// closed also after an error.
func newSite(ctx context.Context, out io.Writer, binary string) (*site, error) {
	s := &site{out: out, source: "nexon-" + strings.ToLower(rand.Text()[:10]), binary: binary}
	var err error
	if s.dir, err = os.MkdirTemp("", "freshet-scenario-"); err != nil {
		return s, err
	}
	if err := s.ownDatabase(ctx); err != nil {
		return s, err
	}
	if s.broker, err = service("FRESHET_TEST_KAFKA"); err != nil {
		return s, err
	}
	if s.kafka, err = newSlowKafka(ctx, s.broker); err != nil {
		return s, err
	}
	s.later(s.kafka.close)
	if s.redis, err = s.ownRedis(ctx); err != nil {
		return s, err
	}
	return s, nil
}

// later has something done when the site is closed, the last first.
func (s *site) later(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, f)
}

// close ends everything; the logs stay if somebody will want to read them.
func (s *site) close(keep bool) {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
	if keep {
		fmt.Fprintf(s.out, "the processes' logs are in %s\n", s.dir)
		return
	}
	_ = os.RemoveAll(s.dir)
}

// service returns the address of a service that must be there.
func service(variable string) (string, error) {
	if value := os.Getenv(variable); value != "" {
		return value, nil
	}
	return "", fmt.Errorf(`%s is not set; start the services with: eval "$(scripts/services up)"`, variable)
}

func (s *site) ownDatabase(ctx context.Context) error {
	admin, err := service("FRESHET_TEST_POSTGRES")
	if err != nil {
		return err
	}
	name := "freshet_" + strings.ToLower(rand.Text()[:10])
	execute := func(ctx context.Context, sql string) error {
		conn, err := pgx.Connect(ctx, admin)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		_, err = conn.Exec(ctx, sql)
		return err
	}
	if err := execute(ctx, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	s.later(func() { _ = execute(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(admin)
	if err != nil {
		return fmt.Errorf("FRESHET_TEST_POSTGRES: %w", err)
	}
	u.Path = "/" + name
	s.database = u.String()
	return nil
}

// prepare starts the upstream, and makes tables and topics. facets says which of the
// simulator's documents each facet has.
func (s *site) prepare(ctx context.Context, facets map[string]string, simulate ...string) error {
	s.facets, s.latency = facets, "30ms-1.7s" // the simulator's own
	if i := slices.Index(simulate, "--latency"); i >= 0 {
		s.latency = simulate[i+1]
	}
	p, err := s.start(ctx, "simulate", upstreamReady, nil, append([]string{"simulate", "--listen", "127.0.0.1:0"}, simulate...)...)
	if err != nil {
		return err
	}
	s.upstream = p.found
	env, err := s.configure("operator", s.broker, "")
	if err != nil {
		return err
	}
	for _, command := range [][]string{{"migrate", "up"}, {"topics", "ensure"}} {
		c := exec.CommandContext(ctx, s.binary, command...)
		c.Env = append(os.Environ(), env...)
		if text, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("freshet %s: %w\n%s", strings.Join(command, " "), err, text)
		}
	}
	s.later(s.deleteTopics)
	return nil
}

func (s *site) deleteTopics() {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.broker))
	if err != nil {
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	admin := kadm.NewClient(client)
	for _, topic := range schemas.Topics(s.source) {
		_, _ = admin.DeleteTopic(ctx, topic.Name)
	}
	_, _ = admin.DeleteGroups(ctx, schemas.Group(s.source, schemas.High), schemas.Group(s.source, schemas.Low))
}

// prefetched is what the reference source says of the prefetch of its facet.
var prefetched = regexp.MustCompile(`(?m)^  facets:\n    character: .*\n`)

// preset is the reference source at an upstream, its facet once for each of these. Those
// that are called otherwise are not prefetched.
func preset(upstream string, facets map[string]string) string {
	const name = "  character:\n"
	text, facet, _ := strings.Cut(strings.Replace(string(nexon.Config), "https://open.api.nexon.com", upstream, 1), name)
	if _, there := facets["character"]; !there {
		text = prefetched.ReplaceAllString(text, "")
	}
	var all strings.Builder
	all.WriteString(text)
	for name, document := range facets {
		fmt.Fprintf(&all, "  %s:\n%s", name, strings.ReplaceAll(facet, "item-equipment", document))
	}
	return all.String()
}

// configure writes a configuration that reaches Kafka at an address, and returns what
// a process with it has in its environment. freshFor is the source's own if empty.
func (s *site) configure(name, broker, freshFor string) (env []string, err error) {
	preset := preset(s.upstream, s.facets)
	if freshFor != "" {
		preset = strings.ReplaceAll(preset, "freshFor: 1h", "freshFor: "+freshFor)
	}
	if s.tuned != nil {
		preset = s.tuned.Replace(preset)
	}
	at := s.redis.address
	if s.ways.redis != nil {
		at = s.ways.redis.address()
	}
	redis := fmt.Sprintf("{mode: single, addresses: [%q]}", at)
	if len(s.cluster) > 0 {
		redis = fmt.Sprintf(`{mode: cluster, addresses: ["%s"]}`, strings.Join(s.cluster, `", "`))
	}
	database := s.database
	if s.ways.database != nil {
		if database, err = led(database, s.ways.database.address()); err != nil {
			return nil, err
		}
	}
	text := fmt.Sprintf("kafka: {brokers: [%q]}\nredis: %s\nsources:\n  %s:\n    %s",
		broker, redis, s.source, strings.ReplaceAll(preset, "\n", "\n    "))
	if s.token != "" {
		file := filepath.Join(s.dir, "token")
		if err := os.WriteFile(file, []byte(s.token), 0o600); err != nil {
			return nil, err
		}
		text = fmt.Sprintf("access: {adminTokenFile: %q}\n", file) + text
	}
	file := filepath.Join(s.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return []string{"NEXON_API_KEY=a-key", "FRESHET_DATABASE_URL=" + database, "FRESHET_CONFIG=" + file}, nil
}

// lead has all that is configured from now on reach Redis and the database over ways
// that can be made bad; the way to Kafka is there for whom it is configured.
func (s *site) lead(ctx context.Context) (err error) {
	if s.ways.redis, err = newProxy(ctx, s.redis.address); err != nil {
		return err
	}
	s.later(s.ways.redis.close)
	u, err := url.Parse(s.database)
	if err != nil {
		return err
	}
	if s.ways.database, err = newProxy(ctx, u.Host); err != nil {
		return err
	}
	s.later(s.ways.database.close)
	return nil
}

// led is a database's URL with another address.
func led(database, address string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	u.Host = address
	return u.String(), nil
}

// query starts a query service that reaches Kafka over the way that can be slowed.
func (s *site) query(ctx context.Context, name, freshFor string) (api string, err error) {
	env, err := s.configure(name, s.kafka.address(), freshFor)
	if err != nil {
		return "", err
	}
	p, err := s.start(ctx, name, `query service is up.* listen=([0-9.:]+)`, env, "query", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return "http://" + p.found, nil
}

func (s *site) worker(ctx context.Context, name string) (*process, error) {
	env, err := s.configure(name, s.broker, "")
	if err != nil {
		return nil, err
	}
	return s.start(ctx, name, "worker is up", env, "worker", "--ops-listen", "127.0.0.1:0")
}
