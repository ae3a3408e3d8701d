package app

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
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/nexon"
)

// Config is the configuration of a process. The YAML file overrides the defaults, environment
// variables (FRESHET_…) override the file, and flags override environment variables.
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

// KafkaConfig configures the connection to the brokers and the topics. ReplicationFactor auto is
// min(3, number of brokers). MinInsyncReplicas auto is one less than the replication factor, but at
// least 1. GroupProtocol is classic or consumer; with consumer the broker assigns the partitions
// (KIP-848).
type KafkaConfig struct {
	Brokers           []string   `yaml:"brokers"`
	TLS               TLSConfig  `yaml:"tls"`
	SASL              SASLConfig `yaml:"sasl"`
	ReplicationFactor Auto       `yaml:"replicationFactor"`
	MinInsyncReplicas Auto       `yaml:"minInsyncReplicas"`
	GroupProtocol     string     `yaml:"groupProtocol"`
}

// SASLConfig configures SASL authentication. It is off without a Mechanism.
type SASLConfig struct {
	Mechanism    string `yaml:"mechanism"`
	User         string `yaml:"user"`
	PasswordFile string `yaml:"passwordFile"`
}

// TLSConfig configures TLS of an outgoing connection.
type TLSConfig struct {
	Enabled  bool   `yaml:"enabled"`
	CAFile   string `yaml:"caFile"`
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
}

// RedisConfig configures the connection to Redis. Mode is single, sentinel or cluster.
type RedisConfig struct {
	Mode         string    `yaml:"mode"`
	Addresses    []string  `yaml:"addresses"`
	MasterName   string    `yaml:"masterName"`
	Username     string    `yaml:"username"`
	PasswordFile string    `yaml:"passwordFile"`
	TLS          TLSConfig `yaml:"tls"`
}

// DatabaseConfig configures the connection to PostgreSQL. Migrations use DirectURL, if it is set,
// to bypass a PgBouncer.
type DatabaseConfig struct {
	URL       string `yaml:"url"`
	DirectURL string `yaml:"directURL"`
}

// QueryConfig configures the query service. CacheMemory bounds the in-memory cache of snapshots,
// in bytes. Console is on, read-only or off.
type QueryConfig struct {
	Listen      string            `yaml:"listen"`
	TLS         ListenerTLSConfig `yaml:"tls"`
	CacheMemory source.Bytes      `yaml:"cacheMemory"`
	// MaxResponseMemory bounds the memory of responses that are being written, in bytes. One
	// client may use half of it. 0: a quarter of the process's memory limit (GOMEMLIMIT or
	// cgroup), or 256 MiB without a limit.
	MaxResponseMemory source.Bytes `yaml:"maxResponseMemory"`
	Console           string       `yaml:"console"`
}

// OpsConfig configures the listener of health and metrics. The listener has no access control, so
// an address beyond loopback needs AllowRemote.
type OpsConfig struct {
	Listen      string            `yaml:"listen"`
	TLS         ListenerTLSConfig `yaml:"tls"`
	AllowRemote bool              `yaml:"allowRemote"`
}

// checkRemote returns an error if Listen is an address beyond loopback and AllowRemote is false.
func (c OpsConfig) checkRemote() error {
	if c.AllowRemote || access.Loopback(c.Listen) {
		return nil
	}
	return fmt.Errorf("ops.listen: %s is beyond loopback, and health and metrics have no access control; listen on loopback, or set ops.allowRemote: true if everyone who can reach the address may read them", c.Listen)
}

// MetricsConfig configures the prefix of all metric names.
type MetricsConfig struct {
	Namespace string `yaml:"namespace"`
}

// LogConfig configures logging. Level is debug, info, warn or error; Format is text or json.
type LogConfig struct {
	Level  slog.Level `yaml:"level"`
	Format string     `yaml:"format"`
}

// Auto is the value of a setting that is a positive number or the word auto. 0 stands for auto.
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

// MarshalYAML writes the form that UnmarshalYAML reads.
func (a Auto) MarshalYAML() (any, error) {
	if a == 0 {
		return "auto", nil
	}
	return int(a), nil
}

// builtInSource is the source that is configured without a configuration file.
const builtInSource = "nexon"

// defaultConfig returns the configuration that applies without a configuration file: all services
// on localhost, and the Nexon Open API as the only source.
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

// loadConfig returns the checked configuration from a file, which may be "", and the environment.
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

// readFile applies a file to the configuration. A file without settings is like no file. If the file
// has sources, the built-in source is removed unless the file configures it.
func (c *Config) readFile(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	root, err := parseFile(file, text)
	if err != nil || root == nil {
		return err
	}
	if mistakes := Reference().Check(root); len(mistakes) > 0 {
		return explainMistakes(file, text, mistakes)
	}
	if err := yaml.NodeToValue(root, c, yaml.Strict()); err != nil {
		return explainSyntax(file, err)
	}
	var named struct {
		Sources map[string]any `yaml:"sources"`
	}
	if err := yaml.NodeToValue(root, &named); err != nil {
		return explainSyntax(file, err)
	}
	if len(named.Sources) > 0 {
		maps.DeleteFunc(c.Sources, func(name string, _ SourceConfig) bool { _, in := named.Sources[name]; return !in })
	}
	return nil
}

var namespacePattern = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)?$`)

// check returns all errors that can be found without connecting to a service.
func (c *Config) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	failEach := func(of string, err error) { // adds each line of err as a separate error that begins with the parameter "of", the path of a setting
		if err == nil {
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fail("%s.%s", of, line)
		}
	}
	if len(c.Kafka.Brokers) == 0 {
		fail("kafka.brokers: at least one is required, as in localhost:9092")
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
		fail("redis.addresses: at least one is required, as in localhost:6379")
	case c.Redis.Mode == "sentinel" && c.Redis.MasterName == "":
		fail("redis.masterName: mode sentinel needs the name of the master")
	case c.Redis.Mode == "single" && len(c.Redis.Addresses) > 1:
		fail("redis.mode: single allows one address; for %d addresses use cluster or sentinel", len(c.Redis.Addresses))
	case !slices.Contains([]string{"single", "sentinel", "cluster"}, c.Redis.Mode):
		fail("redis.mode: %q must be single, sentinel or cluster", c.Redis.Mode)
	}
	for _, u := range []struct{ name, value string }{{"database.url", c.Database.URL}, {"database.directURL", c.Database.DirectURL}} {
		parsed, err := url.Parse(u.value)
		if (err != nil || !strings.HasPrefix(parsed.Scheme, "postgres")) && (u.value != "" || u.name == "database.url") {
			fail("%s: must have the form postgres://user:password@host:port/name", u.name) // the error does not show the value, which may hold a password
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
		fail("metrics.namespace: %q must be empty, or letters, digits and underscores", c.Metrics.Namespace)
	}
	failEach("tracing", c.Tracing.check())
	if c.Log.Format != "text" && c.Log.Format != "json" {
		fail("log.format: %q must be text or json", c.Log.Format)
	}
	if len(c.Sources) == 0 {
		fail("sources: at least one is required")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sources)) {
		if err := schemas.CheckName("source", name); err != nil {
			fail("sources.%s: %w", name, err)
		}
		failEach("sources."+name, c.Sources[name].check(name))
		for i, credential := range c.Sources[name].Credentials {
			if credential.Visibility != "" && c.Access.Require == access.Never {
				fail("sources.%s.credentials[%d].visibility: %q limits which clients may read the data, but access.require: never does not identify clients; set access.require to always or auto, or remove the visibility", name, i, credential.Visibility)
			}
		}
	}
	return errors.Join(errs...)
}
