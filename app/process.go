package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// UsageError reports wrong arguments or flags.
type UsageError struct{ err error }

// UsageErrorf returns a UsageError whose text is formatted like that of fmt.Errorf.
func UsageErrorf(format string, args ...any) error {
	return UsageError{fmt.Errorf(format, args...)}
}

func (e UsageError) Error() string { return e.err.Error() }

func (e UsageError) Unwrap() error { return e.err }

// NotFoundError reports that the named object does not exist.
type NotFoundError struct{ Err error }

func (e NotFoundError) Error() string { return e.Err.Error() }

func (e NotFoundError) Unwrap() error { return e.Err }

// Process holds the environment, the output streams and the configuration file of a process.
type Process struct {
	Env            []string
	Stdout, Stderr io.Writer
	ConfigFile     string
	mask           *masker // redacts secrets in stderr
}

// NewProcess returns a process without a configuration file. Its stderr redacts the secrets of the
// configuration.
func NewProcess(env []string, stdout, stderr io.Writer) *Process {
	p := &Process{Env: env, Stdout: stdout, mask: &masker{}}
	p.Stderr = p.mask.writer(stderr)
	return p
}

// Load returns the configuration of the process. Errors and logs never show the configuration's
// secrets.
func (p *Process) Load(sources Sources) (Config, error) {
	var text []byte
	if p.ConfigFile != "" {
		var err error
		if text, err = os.ReadFile(p.ConfigFile); err != nil {
			return Config{}, fmt.Errorf("read the configuration: %w", err)
		}
	}
	p.mask.learn(text, p.Env)
	c, err := parseConfig(p.ConfigFile, text, p.Env, sources)
	return c, p.mask.maskError(err)
}

// requireSecret reads a credential and redacts it in all logs from now on.
func (p *Process) requireSecret(at secretRef) (string, error) {
	secret, err := requireSecret(at)
	p.AddSecret(secret)
	return secret, err
}

// AddSecret redacts a secret in stderr, and in the output of all writers that MaskWriter returns.
func (p *Process) AddSecret(secret string) { p.mask.add(secretPart{secret, true}) }

// MaskError returns an error whose text contains no known secret.
func (p *Process) MaskError(err error) error { return p.mask.maskError(err) }

// MaskWriter returns a writer that redacts the known secrets.
func (p *Process) MaskWriter(to io.Writer) io.Writer { return p.mask.writer(to) }

// connect connects a process of this role to the real services. It returns the parts from which a
// role is built, and a function that closes the connections.
func (p *Process) connect(ctx context.Context, config Config, role string) (_ parts, _ func(), err error) {
	parts := parts{config: config, secret: p.requireSecret}
	parts.role, parts.lastError = role, newLastError(p.mask)
	parts.log = slog.New(parts.lastError.handler(p.logger(ctx, config.Log, role).Handler()))
	parts.startAttrs = p.startAttrs(config, role)
	parts.registry, parts.reg = newRegistry(config.Metrics.Namespace)
	if parts.kafka, err = config.Kafka.Options(); err != nil {
		return parts, nil, err
	}
	if parts.rdb, err = config.Redis.newClient(redisTimeout, nil); err != nil {
		return parts, nil, err
	}
	db, err := openPostgres(ctx, config.Database)
	if err != nil {
		_ = parts.rdb.Close()
		return parts, nil, err
	}
	parts.store = db
	closeAll := func() { db.Close(); _ = parts.rdb.Close() }
	tracer, flush, err := config.Tracing.newTracer(ctx, parts.log)
	if err != nil {
		closeAll()
		return parts, nil, err
	}
	parts.trace = tracer
	registerRedisMetrics(parts.rdb, parts.reg)
	registerPoolMetrics(db, parts.reg)
	return parts, func() { flush(); closeAll() }, nil
}

// Lookup returns the value of an environment variable in env, or an empty string.
func Lookup(env []string, name string) string {
	for _, entry := range env {
		if len(entry) > len(name) && entry[:len(name)] == name && entry[len(name)] == '=' {
			return entry[len(name)+1:]
		}
	}
	return ""
}
