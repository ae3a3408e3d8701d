//go:build !production

package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/sqlite"
)

// Host runs the roles of freshet in a test: their connections come from Dial, and the database is
// SQLite. A Host can be run only once. Process has the same methods for production, where the
// connections are TCP and the database is PostgreSQL.
type Host struct {
	Name   string // name of the process
	Config Config
	Store  *sqlite.Store
	Dial   Dialer // function that opens the connections to Kafka, Redis and the upstreams
	Log    *slog.Logger
}

// RunQuery runs the query service on a listener until ctx ends.
func (h Host) RunQuery(ctx context.Context, l net.Listener) error {
	return h.run(ctx, serving(l))
}

// RunWorker runs a worker for both lanes of all sources until ctx ends.
func (h Host) RunWorker(ctx context.Context) error {
	return h.run(ctx, working([]schemas.Lane{schemas.High, schemas.Low}, func() {}))
}

// RunScheduler runs a scheduler for all sources until ctx ends.
func (h Host) RunScheduler(ctx context.Context) error {
	return h.run(ctx, scheduling(func() {}))
}

func (h Host) run(ctx context.Context, r role) (err error) {
	p := parts{config: h.Config, store: h.Store, dial: h.Dial, log: h.Log, name: h.Name, secret: optionalSecret}
	p.registry = prometheus.NewRegistry() // without the metrics of the Go runtime, which all hosts of a test share
	p.reg = status.NewMetrics(p.registry)
	if p.kafka, err = h.Config.Kafka.Options(); err != nil {
		return err
	}
	// A zstd decoder is closed by a finalizer, which cannot close the channels of a synctest bubble.
	// So no record is compressed.
	p.kafka = append(p.kafka, kgo.Dialer(h.Dial), kgo.WithCompressor(uncompressed{}))
	if p.rdb, err = h.Config.Redis.newClient(redisTimeout, h.Dial); err != nil {
		return err
	}
	defer func() { _ = p.rdb.Close() }()
	registerRedisMetrics(p.rdb, p.reg)
	if err := p.run(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	return nil
}

// uncompressed is a compressor that changes nothing.
type uncompressed struct{}

// Compress returns src.
func (uncompressed) Compress(_ *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	return src, kgo.CodecNone
}
