package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/nexon"
)

// Config is everything that can be configured. It comes from defaults, a YAML
// file, the environment (FRESHET_…) and flags, each winning over the one before.
type Config struct {
	Kafka    KafkaConfig             `yaml:"kafka"`
	Redis    RedisConfig             `yaml:"redis"`
	Database DatabaseConfig          `yaml:"database"`
	Query    QueryConfig             `yaml:"query"`
	Ops      OpsConfig               `yaml:"ops"`
	Access   access.Config           `yaml:"access"`
	Metrics  MetricsConfig           `yaml:"metrics"`
	Tracing  TracingConfig           `yaml:"tracing"`
	Log      LogConfig               `yaml:"log"`
	Sources  map[string]SourceConfig `yaml:"sources"`
}

// KafkaConfig leads to the brokers. Replication 0 is auto: min(3, brokers), of
// which one may be out of sync. The group protocol is classic, or consumer, with
// which the broker shares out the partitions (KIP-848), if it can.
type KafkaConfig struct {
	Brokers           []string   `yaml:"brokers"`
	TLS               TLSConfig  `yaml:"tls"`
	SASL              SASLConfig `yaml:"sasl"`
	ReplicationFactor Auto       `yaml:"replicationFactor"`
	MinInsyncReplicas Auto       `yaml:"minInsyncReplicas"`
	GroupProtocol     string     `yaml:"groupProtocol"`
}

// SASLConfig is how a client proves who it is; no mechanism: it does not.
type SASLConfig struct {
	Mechanism    string `yaml:"mechanism"`
	User         string `yaml:"user"`
	PasswordFile string `yaml:"passwordFile"`
}

// TLSConfig secures a connection, if it is enabled.
type TLSConfig struct {
	Enabled  bool   `yaml:"enabled"`
	CAFile   string `yaml:"caFile"`
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
}

// RedisConfig leads to a Redis: single, behind sentinels, or a cluster.
type RedisConfig struct {
	Mode         string    `yaml:"mode"`
	Addresses    []string  `yaml:"addresses"`
	MasterName   string    `yaml:"masterName"`
	Username     string    `yaml:"username"`
	PasswordFile string    `yaml:"passwordFile"`
	TLS          TLSConfig `yaml:"tls"`
}

// DatabaseConfig leads to PostgreSQL; DirectURL past a PgBouncer, for migrations.
type DatabaseConfig struct {
	URL       string `yaml:"url"`
	DirectURL string `yaml:"directURL"`
}

// QueryConfig is where reads are answered, how many bytes of snapshots are kept in memory
// in front of the database, and whether there is a console: on, read-only or off.
type QueryConfig struct {
	Listen      string            `yaml:"listen"`
	TLS         ListenerTLSConfig `yaml:"tls"`
	CacheMemory source.Bytes      `yaml:"cacheMemory"`
	// MaxResponseMemory bounds the bytes that responses hold while they are written. One
	// client may hold half of it. 0: a quarter of the memory limit of the process
	// (GOMEMLIMIT or its cgroup), 256 MiB if it has none.
	MaxResponseMemory source.Bytes `yaml:"maxResponseMemory"`
	Console           string       `yaml:"console"`
}

// OpsConfig is where health and metrics are told, which have no access control:
// beyond loopback only if that is meant.
type OpsConfig struct {
	Listen      string            `yaml:"listen"`
	TLS         ListenerTLSConfig `yaml:"tls"`
	AllowRemote bool              `yaml:"allowRemote"`
}

// checkRemote returns an error if the address would be open by mistake.
func (c OpsConfig) checkRemote() error {
	if c.AllowRemote || access.Loopback(c.Listen) {
		return nil
	}
	return fmt.Errorf("ops.listen: %s is beyond loopback, and health and metrics have no access control; listen on loopback, or say ops.allowRemote: true if whoever reaches it may read them", c.Listen)
}

// MetricsConfig says what stands before every metric's name.
type MetricsConfig struct {
	Namespace string `yaml:"namespace"`
}

// LogConfig says what is logged and how: debug, info, warn, error; text, json.
type LogConfig struct {
	Level  slog.Level `yaml:"level"`
	Format string     `yaml:"format"`
}

// Auto is a number, or 0 for auto.
type Auto int

// UnmarshalYAML reads a positive number or the word auto.
func (a *Auto) UnmarshalYAML(unmarshal func(any) error) error {
	var word string
	if err := unmarshal(&word); err == nil && word == "auto" {
		*a = 0
		return nil
	}
	var n int
	if err := unmarshal(&n); err != nil || n < 1 {
		return fmt.Errorf("%q must be auto or a number of at least 1", word)
	}
	*a = Auto(n)
	return nil
}

// MarshalYAML writes it as it is read.
func (a Auto) MarshalYAML() (any, error) {
	if a == 0 {
		return "auto", nil
	}
	return int(a), nil
}

// builtInSource is the name of the source that is there without a file.
const builtInSource = "nexon"

// defaultConfig returns the settings before any file: everything on this machine,
// and the Nexon Open API as the only source.
func defaultConfig() (Config, error) {
	c := Config{
		Kafka:    KafkaConfig{Brokers: []string{"localhost:9092"}, GroupProtocol: "classic"},
		Redis:    RedisConfig{Mode: "single", Addresses: []string{"localhost:6379"}},
		Database: DatabaseConfig{URL: "postgres://localhost/freshet"},
		Query:    QueryConfig{Listen: "127.0.0.1:8080", CacheMemory: 256 << 20, Console: consoleOn},
		Ops:      OpsConfig{Listen: "127.0.0.1:9464"},
		Access:   access.DefaultConfig(),
		Metrics:  MetricsConfig{Namespace: "freshet"},
		Tracing:  TracingConfig{SampleRatio: 0.01},
		Log:      LogConfig{Format: "text"},
	}
	var s SourceConfig
	if err := yaml.UnmarshalWithOptions(nexon.Config, &s, yaml.Strict()); err != nil {
		return Config{}, fmt.Errorf("the default source nexon: %w", err)
	}
	c.Sources = map[string]SourceConfig{builtInSource: s}
	return c, nil
}

// loadConfig returns the configuration of a command: file may be empty.
func loadConfig(file string, env []string) (Config, error) {
	c, err := defaultConfig()
	if err != nil {
		return Config{}, err
	}
	if file != "" {
		if err := c.readFile(file); err != nil {
			return Config{}, err
		}
	}
	if err := c.readEnv(env); err != nil {
		return Config{}, err
	}
	err = c.check()
	if text, unread := os.ReadFile(file); err != nil && unread == nil {
		err = explainCheck(file, text, err)
	}
	return c, err
}

// readFile lays a file over the settings. Sources in it replace the default one:
// who mirrors something else does not mirror that too.
func (c *Config) readFile(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(text, c, yaml.Strict()); err != nil {
		return explainDecode(file, text, err)
	}
	var named struct {
		Sources map[string]any `yaml:"sources"`
	}
	if err := yaml.Unmarshal(text, &named); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if len(named.Sources) > 0 {
		maps.DeleteFunc(c.Sources, func(name string, _ SourceConfig) bool { _, in := named.Sources[name]; return !in })
	}
	return nil
}

var namespacePattern = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)?$`)

// check returns all mistakes that can be seen without asking anybody.
func (c *Config) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	failEach := func(of string, err error) { // each line of it is one mistake
		if err == nil {
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fail("%s.%s", of, line)
		}
	}
	if len(c.Kafka.Brokers) == 0 {
		fail("kafka.brokers: name at least one, as in localhost:9092")
	}
	switch c.Kafka.SASL.Mechanism {
	case "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
	default:
		fail("kafka.sasl.mechanism: %q must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", c.Kafka.SASL.Mechanism)
	}
	if p := c.Kafka.GroupProtocol; p != "classic" && p != "consumer" {
		fail("kafka.groupProtocol: %q must be classic or consumer", p)
	}
	switch {
	case len(c.Redis.Addresses) == 0:
		fail("redis.addresses: name at least one, as in localhost:6379")
	case c.Redis.Mode == "sentinel" && c.Redis.MasterName == "":
		fail("redis.masterName: sentinels need the name of the master they watch")
	case c.Redis.Mode == "single" && len(c.Redis.Addresses) > 1:
		fail("redis.mode: single takes one address; for %d write cluster or sentinel", len(c.Redis.Addresses))
	case !slices.Contains([]string{"single", "sentinel", "cluster"}, c.Redis.Mode):
		fail("redis.mode: %q must be single, sentinel or cluster", c.Redis.Mode)
	}
	for _, u := range []struct{ name, value string }{{"database.url", c.Database.URL}, {"database.directURL", c.Database.DirectURL}} {
		parsed, err := url.Parse(u.value)
		if (err != nil || !strings.HasPrefix(parsed.Scheme, "postgres")) && (u.value != "" || u.name == "database.url") {
			fail("%s: write it as postgres://user:password@host:port/name", u.name) // not the value: it may hold a password
		}
	}
	for _, l := range []struct{ name, value string }{{"query.listen", c.Query.Listen}, {"ops.listen", c.Ops.Listen}} {
		if _, _, err := net.SplitHostPort(l.value); err != nil {
			fail("%s: %q must be host:port, as in 127.0.0.1:8080", l.name, l.value)
		}
	}
	failEach("query.tls", c.Query.TLS.check())
	failEach("ops.tls", c.Ops.TLS.check())
	if w := c.Query.Console; w != consoleOn && w != consoleReadOnly && w != consoleOff {
		fail("query.console: %q must be on, read-only or off", w)
	}
	failEach("access", c.Access.Check())
	if !namespacePattern.MatchString(c.Metrics.Namespace) {
		fail("metrics.namespace: %q must be empty or letters, digits and underscores", c.Metrics.Namespace)
	}
	failEach("tracing", c.Tracing.check())
	if c.Log.Format != "text" && c.Log.Format != "json" {
		fail("log.format: %q must be text or json", c.Log.Format)
	}
	if len(c.Sources) == 0 {
		fail("sources: there must be at least one")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sources)) {
		failEach("sources."+name, c.Sources[name].check(name))
		for i, credential := range c.Sources[name].Credentials {
			if credential.Visibility != "" && c.Access.Require == access.Never {
				fail("sources.%s.credentials[%d].visibility: only those who may see %q are to be served what is fetched with it, and access.require: never asks nobody who they are; set access.require to always or auto, or leave the visibility out", name, i, credential.Visibility)
			}
		}
	}
	return errors.Join(errs...)
}
