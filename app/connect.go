package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/freshet/freshet/store/postgres"
)

// newTLSConfig returns the TLS settings of a connection, or nil if TLS is not enabled.
func (t TLSConfig) newTLSConfig() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil //nolint:nilnil // no TLS
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.caFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.caFile: %s holds no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls.certFile: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func readSecret(name, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Options returns the options that all Kafka clients share.
func (c KafkaConfig) Options() ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID("freshet"),
		kgo.SoftwareNameAndVersion("freshet", strings.TrimPrefix(Version(), "v")),
		kgo.DialTimeout(5 * time.Second),
	}
	secured, err := c.TLS.newTLSConfig()
	if err != nil {
		return nil, fmt.Errorf("kafka.%w", err)
	}
	if secured != nil {
		opts = append(opts, kgo.DialTLSConfig(secured))
	}
	password, err := readSecret("kafka.sasl.passwordFile", c.SASL.PasswordFile)
	if err != nil {
		return nil, err
	}
	switch c.SASL.Mechanism {
	case "PLAIN":
		opts = append(opts, kgo.SASL(plain.Auth{User: c.SASL.User, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		opts = append(opts, kgo.SASL(scram.Auth{User: c.SASL.User, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		opts = append(opts, kgo.SASL(scram.Auth{User: c.SASL.User, Pass: password}.AsSha512Mechanism()))
	}
	return opts, nil
}

// Dialer opens a connection to an address.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

const (
	// redisTimeout bounds one read from, or write to, a Redis connection.
	redisTimeout = time.Second
	// embeddedTimeout replaces redisTimeout for the embedded Redis. That Redis runs in the same
	// process as its clients, so a late response means a busy process, not an unreachable Redis.
	embeddedTimeout = 5 * time.Second
)

// newClient returns a Redis client. Each Redis command ends at the deadline of its context, so the
// caller decides how long it waits for an unreachable Redis. The client does not retry commands.
// `timeout` bounds one read from, or one write to, a connection. The function `dial` opens the
// connections; nil: they are TCP connections.
func (c RedisConfig) newClient(timeout time.Duration, dial Dialer) (redis.UniversalClient, error) {
	secured, err := c.TLS.newTLSConfig()
	if err != nil {
		return nil, fmt.Errorf("redis.%w", err)
	}
	password, err := readSecret("redis.passwordFile", c.PasswordFile)
	if err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: c.Addresses, MasterName: c.MasterName, IsClusterMode: c.Mode == "cluster",
		Username: c.Username, Password: password, TLSConfig: secured,
		MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1, Dialer: dial,
		DialTimeout: time.Second, ReadTimeout: timeout, WriteTimeout: timeout,
	}), nil
}

// openPostgres connects to the database. Its error names the settings to check.
func openPostgres(ctx context.Context, c DatabaseConfig) (*postgres.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := postgres.Open(ctx, c.URL)
	if err != nil {
		return nil, fmt.Errorf("%w; check database.url, and that the database has been migrated (`freshet migrate up`)", err)
	}
	return s, nil
}
