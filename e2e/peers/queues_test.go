package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/freshet/freshet/store"
)

// workers is the number of jobs that a queue runs at once.
const workers = 64

// prepareQueues creates the tables of the queues, and the table to which their jobs write.
func (s *services) prepareQueues(b *testing.B) {
	b.Helper()
	_, err := s.pool.Exec(b.Context(), `CREATE TABLE peer_document (key text PRIMARY KEY, hash bytea NOT NULL,
		encoding text NOT NULL, size int NOT NULL, checked_at timestamptz NOT NULL, payload bytea NOT NULL)`)
	check(b, err)
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), nil)
	check(b, err)
	_, err = migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil)
	check(b, err)
}

// job is the work for one event, for both queues.
type job struct {
	client   *http.Client
	pool     *pgxpool.Pool
	upstream string
	done     *counter
}

// newJob returns the job, with a pool that has a connection for each worker and for the queue itself.
func (s *services) newJob(b *testing.B) *job {
	b.Helper()
	config, err := pgxpool.ParseConfig(s.url)
	check(b, err)
	config.MaxConns = workers + 8
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	check(b, err)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = workers, workers
	return &job{&http.Client{Transport: transport}, pool, s.upstream, newCounter()}
}

func (j *job) close() {
	j.client.CloseIdleConnections()
	j.pool.Close()
}

const upsertDocument = `INSERT INTO peer_document (key, hash, encoding, size, checked_at, payload) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (key) DO UPDATE SET hash = excluded.hash, encoding = excluded.encoding, size = excluded.size,
	checked_at = excluded.checked_at, payload = excluded.payload`

func (j *job) run(ctx context.Context, key string) error {
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, j.upstream+"/"+key, nil)
	if err != nil {
		return err
	}
	response, err := j.client.Do(r)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Compact(&text, body); err != nil {
		return err
	}
	hash, p := sha256.Sum256(text.Bytes()), store.Encode(text.Bytes())
	if _, err := j.pool.Exec(ctx, upsertDocument, key, hash[:], p.Encoding, p.Size, began, p.Bytes); err != nil {
		return err
	}
	j.done.add(1)
	return nil
}

const asynqType = "refresh"

func (s *services) asynq(b *testing.B, round string) time.Duration {
	options := asynq.RedisClientOpt{Addr: s.rdb.Options().Addr, PoolSize: workers + 8}
	client := asynq.NewClient(options)
	var enqueuers sync.WaitGroup
	for first := range workers {
		enqueuers.Go(func() {
			for i := first; i < *events; i += workers {
				if _, err := client.EnqueueContext(b.Context(), asynq.NewTask(asynqType, fmt.Append(nil, round, "-", i))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	enqueuers.Wait()
	check(b, client.Close())
	j := s.newJob(b)
	defer j.close()
	failed := make(chan error, workers)
	server := asynq.NewServer(options, asynq.Config{Concurrency: workers, LogLevel: asynq.ErrorLevel})
	check(b, server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		err := j.run(ctx, string(t.Payload()))
		report(failed, err)
		return err
	})))
	defer server.Shutdown()
	return j.done.wait(b, failed)
}

type riverArgs struct {
	Document string `json:"document"`
}

func (riverArgs) Kind() string { return "refresh" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	job    *job
	failed chan error
}

func (w *riverWorker) Work(ctx context.Context, r *river.Job[riverArgs]) error {
	err := w.job.run(ctx, r.Args.Document)
	report(w.failed, err)
	return err
}

func (s *services) river(b *testing.B, round string) time.Duration {
	w := &riverWorker{job: s.newJob(b), failed: make(chan error, workers)}
	defer w.job.close()
	all := river.NewWorkers()
	river.AddWorker(all, w)
	client, err := river.NewClient(riverpgxv5.New(w.job.pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {
			MaxWorkers: workers, FetchCooldown: river.FetchCooldownMin, FetchPollInterval: river.FetchPollIntervalMin,
		}},
		Workers: all,
	})
	check(b, err)
	const batch = 5000
	for i := 0; i < *events; i += batch {
		jobs := make([]river.InsertManyParams, min(batch, *events-i))
		for n := range jobs {
			jobs[n] = river.InsertManyParams{Args: riverArgs{fmt.Sprint(round, "-", i+n)}}
		}
		_, err := client.InsertManyFast(b.Context(), jobs)
		check(b, err)
	}
	_, err = w.job.pool.Exec(b.Context(), "ANALYZE river_job", pgx.QueryExecModeSimpleProtocol)
	check(b, err)
	check(b, client.Start(b.Context()))
	took := w.job.done.wait(b, w.failed)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), time.Minute)
	defer cancel()
	check(b, client.Stop(ctx))
	return took
}

// report passes a job's error to the benchmark. Without this report a queue would repeat the job,
// and the measured rate would be wrong.
func report(failed chan<- error, err error) {
	if err != nil {
		select {
		case failed <- err:
		default:
		}
	}
}
