package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/entities"
)

const (
	// maxBatchRows and maxBatchBytes are the maximum size of one request; the limits of the API are
	// higher. Up to maxBatchesInFlight requests are in flight, so that round trips do not limit the
	// rate.
	maxBatchRows       = 5000
	maxBatchBytes      = 1<<20 - 4<<10
	maxBatchesInFlight = 4
	// maxRowErrorsShown is the number of invalid rows of one request that an error names.
	maxRowErrorsShown = 3
)

func entitiesImport(p *program) *cobra.Command {
	var addr, format string
	i := importer{stderr: p.Stderr}
	c := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Register entities from a file, or from stdin: CSV or JSON lines",
		Long: `Register entities of a facet from a file, or from stdin, so that they are prefetched.

CSV needs a header line with the column key. The columns tier (hot, warm, cold; empty: cold) and
enabled (true, false; empty: true) are optional. Every other column is the facet's param of that
name. A JSON line is an object with key, params, tier and enabled. The due times of the new
entities are spread evenly.

For an entity that is already registered, the import replaces params, tier and enabled, and keeps
its due time. So an import can be repeated, and --skip continues one that was interrupted.`,
		Example: `  freshet entities import --source nexon --facet character characters.csv
  zcat characters.jsonl.gz | freshet entities import --facet character --keep-going`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case i.facet == "":
				return app.UsageErrorf("--facet is required")
			case format != "" && format != "csv" && format != "jsonl":
				return app.UsageErrorf("--format is %q; it must be csv or jsonl", format)
			case i.skip < 0:
				return app.UsageErrorf("--skip is %d; it must be 0 or a positive number of rows", i.skip)
			}
			in := cmd.InOrStdin()
			if len(args) > 0 && args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }()
				if info, err := file.Stat(); err == nil && info.IsDir() {
					return fmt.Errorf("%s is a directory; name a file", args[0])
				}
				in = file
			}
			var err error
			if i.api, err = p.newAdminClient(addr); err != nil {
				return err
			}
			if i.source, err = resolveSource(cmd.Context(), i.api, i.source, ""); err != nil {
				return err
			}
			defer i.api.KeepAlive(maxBatchesInFlight)()
			f, _ := p.Stderr.(*os.File)
			i.input = newCountingReader(in)
			i.progress = &progress{p.Stderr, f != nil && isTerminal(f), i.input, time.Now()}
			if err := i.run(cmd.Context(), format); err != nil {
				return err
			}
			if i.rows < i.skip {
				fmt.Fprintf(p.Stderr, "warning: --skip %d skips all of the %d rows; check that it is the same input\n", i.skip, i.rows)
			}
			fmt.Fprintf(p.Stdout, "%d rows, %d added, %d known", i.last-i.start, i.added, i.known)
			if i.invalid == 0 {
				fmt.Fprintln(p.Stdout)
				return nil
			}
			fmt.Fprintf(p.Stdout, ", %d invalid\n", i.invalid)
			return partialError{fmt.Errorf("%d invalid rows were skipped", i.invalid)}
		},
	}
	f := c.Flags()
	f.StringVar(&i.source, "source", "", "import into this source (required if there are several)")
	f.StringVar(&i.facet, "facet", "", "import into this facet (required)")
	f.StringVar(&format, "format", "", "read this format: csv or jsonl (default: detected by the first byte)")
	f.IntVar(&i.skip, "skip", 0, "skip this number of rows, to continue an interrupted import")
	f.BoolVar(&i.keepGoing, "keep-going", false, "print invalid rows to stderr and skip them, instead of stopping")
	addAddrFlag(c, &addr)
	return c
}

// importer runs one import of entities. Its method read builds batches of rows, its method send
// registers each batch, and its method run counts the results in the order of the input.
type importer struct {
	api           *adminClient
	source, facet string
	skip          int
	keepGoing     bool
	input         *countingReader
	progress      *progress
	stderr        io.Writer
	start, last   int // rows 1 to start are skipped (--skip); rows start+1 to last are imported, or were rejected as invalid
	rows          int // number of rows in the input; set when the input ends
	added, known  int
	invalid       int
}

// importBatch holds the rows of one request, and its result.
type importBatch struct {
	orders  []json.RawMessage
	lines   []int // line number of each row in the input
	bytes   int
	last    int // number of the batch's last row in the input
	invalid []rowError
	end     error // set on the last batch: io.EOF, or the error that ended the input
	done    chan struct{}
	entities.RegisterResult
	failed error
}

// run imports until the input ends, an error occurs, or ctx ends. It always waits for the
// requests in flight, and then returns an error with the row at which to continue.
func (i *importer) run(ctx context.Context, format string) error {
	batches, stop := make(chan *importBatch), make(chan struct{})
	defer close(stop)
	go i.read(format, batches, stop) // if a read of the input blocks, this goroutine ends only with the process
	tick := time.NewTicker(i.progress.interval())
	defer tick.Stop()
	interrupted := ctx.Done()
	i.start, i.last = i.skip, i.skip
	var sent []*importBatch // batches that were sent and whose results are not recorded yet, in input order
	var failed, end error
	for ended := false; !ended || len(sent) > 0; {
		more := batches
		if ended || len(sent) == maxBatchesInFlight {
			more = nil
		}
		var first chan struct{}
		if len(sent) > 0 {
			first = sent[0].done
		}
		select {
		case p := <-more:
			ended, end = p.end != nil, p.end
			sent = append(sent, p)
			go i.send(context.WithoutCancel(ctx), p)
		case <-first:
			p := sent[0]
			sent = sent[1:]
			if failed == nil {
				failed = p.failed
			}
			if failed == nil {
				i.record(p)
			}
			ended = ended || failed != nil
		case <-interrupted:
			interrupted = nil
			if !ended {
				ended, end = true, errors.New("interrupted")
			}
		case now := <-tick.C:
			i.progress.show(i.last-i.start, now)
		}
	}
	i.progress.clear()
	if failed == nil && !errors.Is(end, io.EOF) {
		failed = end
	}
	if failed == nil || i.last == i.start { // if no batch was imported, the error names no other --skip, because the user can repeat the same command
		return failed
	}
	stopped := "; stopped"
	if strings.HasSuffix(failed.Error(), ".") {
		stopped = " Stopped"
	}
	return fmt.Errorf("%w%s after row %d; continue with --skip %d", failed, stopped, i.last, i.last)
}

// record adds the result of a batch to the totals, and prints its invalid rows.
func (i *importer) record(p *importBatch) {
	i.last = max(i.last, p.last)
	i.added += p.Added
	i.known += p.Known
	i.invalid += len(p.invalid)
	if len(p.invalid) > 0 {
		i.progress.clear()
	}
	slices.SortFunc(p.invalid, func(a, b rowError) int { return a.line - b.line })
	for _, w := range p.invalid {
		fmt.Fprintln(i.stderr, w.Error())
	}
}

// read reads batches until the input ends or the channel `stop` is closed.
func (i *importer) read(format string, batches chan<- *importBatch, stop <-chan struct{}) {
	p := &importBatch{done: make(chan struct{})}
	emit := func(end error) (proceed bool) {
		p.end = end
		select {
		case batches <- p:
			p = &importBatch{done: make(chan struct{}), last: p.last}
			return end == nil
		case <-stop:
			return false
		}
	}
	rows, err := newRowReader(i.input, format)
	if err != nil {
		emit(err)
		return
	}
	for n := 1; ; n++ {
		o, line, err := rows.next()
		invalid, isRowError := errors.AsType[rowError](err)
		switch {
		case n <= i.skip && (err == nil || isRowError):
			continue
		case isRowError && i.keepGoing:
			p.invalid = append(p.invalid, invalid)
		case err != nil:
			i.rows = n - 1
			emit(err)
			return
		default:
			text, err := json.Marshal(o)
			if err != nil {
				panic(err) // an EntitySpec can always be encoded
			}
			if p.bytes+len(text) >= maxBatchBytes && !emit(nil) {
				return
			}
			p.orders, p.lines, p.bytes = append(p.orders, text), append(p.lines, line), p.bytes+len(text)+1
		}
		p.last = n
		if len(p.orders)+len(p.invalid) == maxBatchRows && !emit(nil) {
			return
		}
	}
}

// send registers the rows of a batch. The query service may reject rows that this program can't
// check, such as a key that does not match the facet's keyPattern. With keepGoing, send removes the
// rejected rows and sends the other rows again.
func (i *importer) send(ctx context.Context, p *importBatch) {
	defer close(p.done)
	for len(p.orders) > 0 {
		var done entities.RegisterResult
		err := i.api.Call(ctx, http.MethodPost, "/entities", entities.RegisterRequest{Source: i.source, Facet: i.facet, Entities: p.orders}, &done)
		if err == nil {
			p.RegisterResult = done
			return
		}
		rejected, ok := errors.AsType[invalidItemsError](err)
		if !ok {
			p.failed = err
			return
		}
		invalid := p.removeInvalid(rejected)
		if !i.keepGoing || len(invalid) == 0 {
			p.failed = err
			if len(invalid) > 0 {
				p.failed = joinRowErrors(invalid)
			}
			return
		}
		p.invalid = append(p.invalid, invalid...)
	}
}

// removeInvalid removes the rejected rows from the batch and returns their errors.
func (p *importBatch) removeInvalid(rejected invalidItemsError) (invalid []rowError) {
	at := map[int]string{}
	for _, e := range rejected.Items {
		var index int
		if _, err := fmt.Sscanf(e.Pointer, "#/entities/%d", &index); err == nil && index < len(p.orders) {
			at[index] = e.Detail
		}
	}
	orders, lines := p.orders[:0], p.lines[:0]
	for index, order := range p.orders {
		if detail, ok := at[index]; ok {
			invalid = append(invalid, rowError{p.lines[index], errors.New(detail)})
			continue
		}
		orders, lines = append(orders, order), append(lines, p.lines[index])
	}
	p.orders, p.lines = orders, lines
	return invalid
}

// joinRowErrors returns one error for several invalid rows. It names at most maxRowErrorsShown rows.
func joinRowErrors(invalid []rowError) error {
	var texts []string
	for _, w := range invalid[:min(len(invalid), maxRowErrorsShown)] {
		texts = append(texts, w.Error())
	}
	if more := len(invalid) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and at least %d more", more))
	}
	return errors.New(strings.Join(texts, "; "))
}
