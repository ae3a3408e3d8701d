package app

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// Config is the configuration of a process. The YAML file overrides the defaults, environment
// variables (FRESHET_…) override the file, and flags override environment variables.
type Config struct {
	Kafka    KafkaConfig    `yaml:"kafka"`
	Redis    RedisConfig    `yaml:"redis"`
	Database DatabaseConfig `yaml:"database"`
	Secrets  SecretsConfig  `yaml:"secrets"`
	Query    QueryConfig    `yaml:"query"`
	Ops      OpsConfig      `yaml:"ops"`
	// Access configures authentication, and the limits of each client.
	Access access.Config `yaml:"access"`
	// Credits configures the credits that clients spend for refreshes.
	Credits credits.Config `yaml:"credits"`
	// Retention configures how long rows are kept that belong to no facet, such as entries of the
	// audit.
	Retention retention.Config `yaml:"retention"`
	Metrics   MetricsConfig    `yaml:"metrics"`
	Tracing   TracingConfig    `yaml:"tracing"`
	Log       LogConfig        `yaml:"log"`
	// Sources are the upstream APIs by name. A name has lower-case letters, digits and inner hyphens.
	Sources map[string]SourceConfig `yaml:"sources"`

	builtIn bool // true: no source is configured, and Sources has only the built-in source
}

// KafkaConfig configures the connection to the brokers and the topics.
type KafkaConfig struct {
	// Brokers are the addresses of one or more brokers, as host:port.
	Brokers []string   `yaml:"brokers"`
	TLS     TLSConfig  `yaml:"tls"`
	SASL    SASLConfig `yaml:"sasl"`
	// ReplicationFactor is the number of replicas of new topics. With auto it is 3, or the number of
	// brokers if that is lower.
	ReplicationFactor Auto `yaml:"replicationFactor"`
	// MinInsyncReplicas is the setting min.insync.replicas of new topics. With auto it is one less than the
	// replication factor, but at least 1.
	MinInsyncReplicas Auto `yaml:"minInsyncReplicas"`
	// GroupProtocol is the protocol of the workers' consumer groups. With consumer, the brokers assign
	// the partitions (KIP-848, Kafka 4); with classic, a group member assigns them.
	GroupProtocol string `yaml:"groupProtocol" enum:"classic,consumer"`
}

// SASLConfig configures the authentication at the brokers.
type SASLConfig struct {
	// Mechanism is the SASL mechanism. If it is empty, SASL is off.
	Mechanism string `yaml:"mechanism" enum:",PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"`
	// User is the name of the user.
	User string `yaml:"user"`
	// PasswordFile is the path of a file with the password. Spaces and line breaks around the password
	// are ignored.
	PasswordFile string `yaml:"passwordFile"`
}

// TLSConfig configures TLS of the connection.
type TLSConfig struct {
	// Enabled switches TLS on. The minimum version is TLS 1.2.
	Enabled bool `yaml:"enabled"`
	// CAFile is the path of the certificates (PEM) of the authorities that may sign the server's
	// certificate. Without it, the authorities of the operating system are used.
	CAFile string `yaml:"caFile"`
	// CertFile is the path of a client certificate (PEM), for servers that require client certificates.
	CertFile string `yaml:"certFile"`
	// KeyFile is the path of the private key (PEM) of the client certificate.
	KeyFile string `yaml:"keyFile"`
}

// RedisConfig configures the connection to Redis.
type RedisConfig struct {
	// Mode is the kind of the installation: one server, Redis Sentinel, or Redis Cluster.
	Mode string `yaml:"mode" enum:"single,sentinel,cluster"`
	// Addresses are the servers as host:port: the server with mode single, the sentinels with mode
	// sentinel, some nodes with mode cluster.
	Addresses []string `yaml:"addresses"`
	// MasterName is the name of the master that the sentinels know. It is required with mode sentinel.
	MasterName string `yaml:"masterName"`
	// Username is the name of the ACL user; empty: the default user.
	Username string `yaml:"username"`
	// PasswordFile is the path of a file with the password. Spaces and line breaks around the password
	// are ignored.
	PasswordFile string    `yaml:"passwordFile"`
	TLS          TLSConfig `yaml:"tls"`
}

// DatabaseConfig configures the connection to PostgreSQL.
type DatabaseConfig struct {
	// URL is the address of the database, as in postgres://user:password@host:5432/name?sslmode=verify-full.
	// It can be the address of a PgBouncer.
	URL string `yaml:"url"`
	// DirectURL is the address that migrations use, to bypass a PgBouncer; empty: the same as url.
	DirectURL string `yaml:"directURL"`
}

// SecretsConfig configures the encryption of secrets in the database.
type SecretsConfig struct {
	// KeyFile is the path of a file with the keys that encrypt the tokens of credentials. Each line
	// is an id and 32 bytes in base64. The first key encrypts, the others only decrypt. A changed
	// file is used at once. The setting is required if a credential has a token.
	KeyFile string `yaml:"keyFile"`
}

// QueryConfig configures the query service, which serves the HTTP API and the console.
type QueryConfig struct {
	// Listen is the address of the HTTP API, as host:port.
	Listen string            `yaml:"listen"`
	TLS    ListenerTLSConfig `yaml:"tls"`
	// CacheMemory is the maximum size of the in-memory cache of snapshots.
	CacheMemory source.Bytes `yaml:"cacheMemory"`
	// MaxResponseMemory is the maximum memory of responses that are being written. One client may use
	// half of it. 0 means a quarter of the process's memory limit (GOMEMLIMIT or cgroup), or
	// 256 MiB if the process has no memory limit.
	MaxResponseMemory source.Bytes `yaml:"maxResponseMemory"`
	// Console is the mode of the console: on, read-only (the console has no actions), or off.
	Console string `yaml:"console" enum:"on,read-only,off"`
}

// OpsConfig configures the listener of health checks and metrics of the workers and the scheduler.
type OpsConfig struct {
	// Listen is the address of health checks and metrics, as host:port.
	Listen string            `yaml:"listen"`
	TLS    ListenerTLSConfig `yaml:"tls"`
	// AllowRemote allows an address that other machines can reach. The listener has no access control,
	// so everyone who can reach the address can read health and metrics.
	AllowRemote bool `yaml:"allowRemote"`
}

// checkRemote returns an error if Listen is an address beyond loopback and AllowRemote is false.
func (c OpsConfig) checkRemote() error {
	if c.AllowRemote || access.Loopback(c.Listen) {
		return nil
	}
	return fmt.Errorf("ops.listen: %s is beyond loopback, and health and metrics have no access control; listen on loopback, or set ops.allowRemote: true if everyone who can reach the address may read them", c.Listen)
}

// MetricsConfig configures the metrics.
type MetricsConfig struct {
	// Namespace is the prefix of all metric names, without the underscore; empty: no prefix.
	Namespace string `yaml:"namespace"`
}

// LogConfig configures the log on stderr.
type LogConfig struct {
	// Level is the lowest level that is logged. The signals SIGUSR1 and SIGUSR2 change it while the
	// process runs.
	Level slog.Level `yaml:"level"`
	// Format is the form of a log line.
	Format string `yaml:"format" enum:"text,json"`
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

// builtInSource is the name and the preset of the source that `freshet dev` runs without a configured
// source.
const builtInSource = "nexon"

// defaultConfig returns the configuration that applies without a configuration file: all services
// on localhost, and no source.
func defaultConfig() Config {
	return Config{
		Kafka:     KafkaConfig{Brokers: []string{"localhost:9092"}, GroupProtocol: "classic"},
		Redis:     RedisConfig{Mode: "single", Addresses: []string{"localhost:6379"}},
		Database:  DatabaseConfig{URL: "postgres://localhost/freshet"},
		Query:     QueryConfig{Listen: "127.0.0.1:8080", CacheMemory: 256 << 20, Console: consoleOn},
		Ops:       OpsConfig{Listen: "127.0.0.1:9464"},
		Access:    access.DefaultConfig(),
		Credits:   credits.DefaultConfig(),
		Retention: retention.DefaultConfig(),
		Metrics:   MetricsConfig{Namespace: "freshet"},
		Tracing:   TracingConfig{SampleRatio: 0.01},
		Log:       LogConfig{Format: "text"},
	}
}

// Sources decides what Load returns if no source is configured.
type Sources int

const (
	// OptionalSources makes Load return the configuration without a source.
	OptionalSources Sources = iota
	// RequiredSources makes Load return an error.
	RequiredSources
	// builtInSources makes Load return the configuration with the built-in source.
	builtInSources
)

// parseConfig returns the checked configuration from the text of a file and the environment. Errors
// name the file.
func parseConfig(file string, text []byte, env []string, sources Sources) (Config, error) {
	c := defaultConfig()
	if err := c.applyFile(file, text); err != nil {
		return Config{}, err
	}
	if len(c.Sources) == 0 && sources == builtInSources {
		c.builtIn = true
		if err := yaml.Unmarshal([]byte("{"+builtInSource+": {preset: "+builtInSource+"}}"), &c.Sources); err != nil {
			return Config{}, fmt.Errorf("the built-in source: %w", err)
		}
	}
	if err := c.readEnv(env); err != nil {
		return Config{}, err
	}
	err := c.check()
	if err != nil && file != "" {
		err = explainCheck(file, text, err)
	}
	if err == nil && len(c.Sources) == 0 && sources == RequiredSources {
		in := ""
		if file != "" {
			in = " in " + file
		}
		err = fmt.Errorf("sources: no source is configured%s; write a file with `freshet init URL` for your API, or with `sources: {nexon: {preset: nexon}}` for a known one (`freshet config preset` lists all), and name the file with --config FILE", in)
	}
	return c, err
}

// applyFile applies the text of a file to the configuration. A file without settings is like no file.
func (c *Config) applyFile(file string, text []byte) error {
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
	return nil
}

var namespacePattern = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)?$`)

// check returns all errors that can be found without connecting to a service.
func (c *Config) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	failEach := func(of string, err error) { // failEach adds each line of err to errs as a separate error, which begins with the setting's path "of"
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
	failEach("credits", c.Credits.Check())
	failEach("retention", c.Retention.Check())
	if c.Credits.Enabled() && c.Access.Require == access.Never {
		fail("credits.plans: credits belong to clients, but access.require: never does not identify clients; set access.require to always or auto, or remove the plans")
	}
	if !namespacePattern.MatchString(c.Metrics.Namespace) {
		fail("metrics.namespace: %q must be empty, or letters, digits and underscores", c.Metrics.Namespace)
	}
	failEach("tracing", c.Tracing.check())
	if c.Log.Format != "text" && c.Log.Format != "json" {
		fail("log.format: %q must be text or json", c.Log.Format)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sources)) {
		if err := schemas.CheckName("source", name); err != nil {
			fail("sources.%s: %w", name, err)
		}
		switch name {
		case "credits":
			fail("sources.credits: the name is reserved, because GET /v1/credits shows the balance of a client; choose another name")
		case "runs":
			fail("sources.runs: the name is reserved, because GET /v1/runs/ID shows a run; choose another name")
		}
		failEach("sources."+name, c.Sources[name].check(name))
		if c.Secrets.KeyFile == "" && len(renewing(c.Sources[name])) > 0 {
			fail("secrets.keyFile: is missing, and source %s has a credential with a token; write a key with `echo \"2026-11 $(openssl rand -base64 32)\" > FILE`", name)
		}
		for i, credential := range c.Sources[name].Credentials {
			if credential.Visibility != "" && c.Access.Require == access.Never {
				fail("sources.%s.credentials[%d].visibility: %q limits which clients may read the data, but access.require: never does not identify clients; set access.require to always or auto, or remove the visibility", name, i, credential.Visibility)
			}
		}
	}
	return errors.Join(errs...)
}
