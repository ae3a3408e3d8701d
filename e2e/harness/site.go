package harness

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// Site is one installation of freshet: its own database, topics and Redis, an upstream, and the
// processes that were started. A process gets the values that the exported fields have when it is
// started.
type Site struct {
	Out    io.Writer // writer for messages about the installation
	Dir    string    // directory of the configurations and logs
	Binary string    // path of freshet, as returned by Build
	Root   string    // directory of the main module

	Source  string            // name of the reference source
	Facets  map[string]string // facets of the reference source, and the upstream document that each facet reads
	Edits   []string          // old text, new text, old text, ...: replacements in the reference source's configuration
	Sources map[string]string // configuration of each source, by name; if set, it replaces the reference source
	// Settings has further sections of the configuration, as YAML that ends with a line break.
	Settings string
	Env      []string // additional environment variables of the processes
	// MaxPartitions bounds the partitions of each topic, for sites with many sources. 0 means no bound.
	MaxPartitions int32
	Token         string // admin token; if it is empty, requests need no token

	Upstream string // URL of the simulator
	Latency  string // latency of the upstream at its start, such as 30ms-1.7s

	Database                  string // URL of the site's database
	Broker                    string // address of Kafka
	Kafka                     *KafkaProxy
	Redis                     *Process
	RedisCluster              []string // addresses of a Redis Cluster; if set, the processes use it instead of Redis
	RedisProxy, DatabaseProxy *Proxy   // proxies that UseProxies sets; nil: the processes connect directly

	port      int        // the next port that FreePort tries
	mu        sync.Mutex // guards the fields below
	processes []*Process
	closers   []func()
}

// New creates a database and starts a Redis server and a proxy to Kafka. The caller must close
// the site, also after an error.
func New(ctx context.Context, out io.Writer, binary string) (s *Site, err error) {
	s = &Site{Out: out, Source: "nexon-" + strings.ToLower(rand.Text()[:10]), Binary: binary}
	if s.Root, err = Root(); err != nil {
		return s, err
	}
	if s.Dir, err = os.MkdirTemp("", "freshet-e2e-"); err != nil {
		return s, err
	}
	if err := s.createDatabase(ctx); err != nil {
		return s, err
	}
	if s.Broker, err = ServiceAddress("FRESHET_TEST_KAFKA"); err != nil {
		return s, err
	}
	if s.Kafka, err = NewKafkaProxy(ctx, s.Broker); err != nil {
		return s, err
	}
	s.OnClose(s.Kafka.Close)
	if s.Redis, err = s.startRedis(ctx); err != nil {
		return s, err
	}
	return s, nil
}

// OnClose registers a function for Close, which calls the functions in reverse order.
func (s *Site) OnClose(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, f)
}

// Close stops all processes and removes the site's database, topics and directory. If keep is
// set, the directory with configurations and logs stays.
func (s *Site) Close(keep bool) {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
	if keep {
		fmt.Fprintf(s.Out, "logs of the processes: %s\n", s.Dir)
		return
	}
	_ = os.RemoveAll(s.Dir)
}

// Prepare starts the upstream with flags of `freshet simulate`, and creates the tables and the
// topics of the reference source. facets is the value for Site.Facets.
func (s *Site) Prepare(ctx context.Context, facets map[string]string, simulate ...string) error {
	s.Facets, s.Latency = facets, "30ms-1.7s" // the default latency of `freshet simulate`
	if i := slices.Index(simulate, "--latency"); i >= 0 {
		s.Latency = simulate[i+1]
	}
	p, err := s.Start(ctx, "simulate", upstreamReady, nil, append([]string{"simulate", "--listen", "127.0.0.1:0"}, simulate...)...)
	if err != nil {
		return err
	}
	s.Upstream = p.Match
	return s.CreateTables(ctx)
}

// CreateTables creates the tables, and the missing topics of all sources.
func (s *Site) CreateTables(ctx context.Context) error {
	s.OnClose(s.deleteTopics)
	if _, err := s.Command(ctx, "migrate", "up"); err != nil {
		return err
	}
	if s.MaxPartitions == 0 {
		_, err := s.Command(ctx, "topics", "ensure")
		return err
	}
	client, err := s.ConnectKafka()
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for _, name := range s.names() {
		for _, topic := range schemas.Topics(name) {
			if _, err := admin.CreateTopic(ctx, min(s.MaxPartitions, topic.Partitions), 1, nil, topic.Name); err != nil {
				return fmt.Errorf("create the topic %s: %w", topic.Name, err)
			}
		}
	}
	return nil
}

// Command runs a freshet command with the site's configuration and returns its output after it
// has ended.
func (s *Site) Command(ctx context.Context, args ...string) (string, error) {
	env, err := s.Configure("operator", s.Broker, "")
	if err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, s.Binary, args...)
	c.Env = append(os.Environ(), env...)
	text, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("freshet %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return string(text), err
}

// names returns the names of all sources.
func (s *Site) names() []string {
	if len(s.Sources) == 0 {
		return []string{s.Source}
	}
	return slices.Sorted(maps.Keys(s.Sources))
}

func (s *Site) deleteTopics() {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Broker))
	if err != nil {
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	admin := kadm.NewClient(client)
	for _, name := range s.names() {
		for _, topic := range schemas.Topics(name) {
			_, _ = admin.DeleteTopic(ctx, topic.Name)
		}
		_, _ = admin.DeleteGroups(ctx, schemas.Group(name, schemas.High), schemas.Group(name, schemas.Low))
	}
}
