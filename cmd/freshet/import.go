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

	"github.com/freshet/freshet/entities"
)

const (
	// A request has partRows and partBytes at most, less than the API takes, and
	// inFlight are under way at once: the rate is not bound by round trips.
	maxBatchRows       = 5000
	maxBatchBytes      = 1<<20 - 4<<10
	maxBatchesInFlight = 4
	// maxRowErrorsShown is how many wrong rows of one request an error names.
	maxRowErrorsShown = 3
)

func (p *program) entitiesImport() *cobra.Command {
	var addr, format string
	i := importer{stderr: p.stderr}
	c := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Register entities from a file, or from stdin: CSV or JSON lines",
		Long: `Register entities of a facet from a file, or from stdin, so that they are prefetched. CSV has
a header line with the column key, and tier (hot, warm, cold; empty: cold) and enabled (true,
false; empty: true) if it likes; every other column is the facet's param of that name. A JSON line is
an object with key, params, tier and enabled. Each entity becomes due in a slot of its own.

What is registered already gets the params, the tier and the flag of its row, and keeps when
it is due. So an import may be repeated, and one that was stopped goes on with --skip.`,
		Example: `  freshet entities import --source nexon --facet character characters.csv
  zcat characters.jsonl.gz | freshet entities import --facet character --keep-going`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case i.facet == "":
				return usageError{errors.New("say of which facet they are with --facet")}
			case format != "" && format != "csv" && format != "jsonl":
				return usageError{fmt.Errorf("--format is %q; it must be csv or jsonl", format)}
			case i.skip < 0:
				return usageError{fmt.Errorf("--skip is %d; it must be a number of rows", i.skip)}
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
			if i.source, err = i.api.resolveSource(cmd.Context(), i.source, ""); err != nil {
				return err
			}
			defer i.api.keepAlive()()
			f, _ := p.stderr.(*os.File)
			i.input = newCountingReader(in)
			i.progress = &progress{p.stderr, f != nil && isTerminal(f), i.input, time.Now()}
			if err := i.run(cmd.Context(), format); err != nil {
				return err
			}
			if i.rows < i.skip {
				fmt.Fprintf(p.stderr, "there are %d rows, and --skip %d leaves out all of them and more; is it the same input?\n", i.rows, i.skip)
			}
			fmt.Fprintf(p.stdout, "%d rows, %d added, %d known", i.last-i.begun, i.added, i.known)
			if i.wrong == 0 {
				fmt.Fprintln(p.stdout)
				return nil
			}
			fmt.Fprintf(p.stdout, ", %d wrong\n", i.wrong)
			return partialError{fmt.Errorf("%d rows are wrong and were left out", i.wrong)}
		},
	}
	f := c.Flags()
	f.StringVar(&i.source, "source", "", "of this source (may be left out if there is one)")
	f.StringVar(&i.facet, "facet", "", "of this facet")
	f.StringVar(&format, "format", "", "csv or jsonl (default: as the first byte tells)")
	f.IntVar(&i.skip, "skip", 0, "leave out so many rows, of an import that was stopped after them")
	f.BoolVar(&i.keepGoing, "keep-going", false, "name wrong rows on stderr and leave them out, in place of stopping")
	addAddrFlag(c, &addr)
	return c
}

// importer is one import.
type importer struct {
	api           *adminClient
	source, facet string
	skip          int
	keepGoing     bool
	input         *countingReader
	progress      *progress
	stderr        io.Writer
	begun, last   int // rows before the first, and up to the last that is done with all before it
	rows          int // of an input that has ended
	added, known  int
	wrong         int
}

// importBatch is what one request registers, and what became of it.
type importBatch struct {
	orders []json.RawMessage
	lines  []int // of the orders
	bytes  int
	last   int // number of its last row
	wrong  []rowError
	end    error // why nothing follows; nil: more does
	done   chan struct{}
	entities.RegisterResult
	failed error
}

// run imports until the input ends, something is wrong, or ctx ends. What was sent is
// waited for in any case: the error says where to go on.
func (i *importer) run(ctx context.Context, format string) error {
	parts, enough := make(chan *importBatch), make(chan struct{})
	defer close(enough)
	go i.read(format, parts, enough) // blocked in a read, it ends with the program
	tick := time.NewTicker(i.progress.interval())
	defer tick.Stop()
	interrupted := ctx.Done()
	i.begun, i.last = i.skip, i.skip
	var sent []*importBatch // in their order
	var failed, end error
	for ended := false; !ended || len(sent) > 0; {
		more := parts
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
			i.progress.show(i.last-i.begun, now)
		}
	}
	i.progress.clear()
	if failed == nil && !errors.Is(end, io.EOF) {
		failed = end
	}
	if failed == nil || i.last == i.begun { // where nothing was done, the same command begins where this one did
		return failed
	}
	stopped := "; stopped"
	if strings.HasSuffix(failed.Error(), ".") {
		stopped = " Stopped"
	}
	return fmt.Errorf("%w%s after row %d; go on with --skip %d", failed, stopped, i.last, i.last)
}

// record counts what became of a part, and names its wrong rows.
func (i *importer) record(p *importBatch) {
	i.last = max(i.last, p.last)
	i.added += p.Added
	i.known += p.Known
	i.wrong += len(p.wrong)
	if len(p.wrong) > 0 {
		i.progress.clear()
	}
	slices.SortFunc(p.wrong, func(a, b rowError) int { return a.line - b.line })
	for _, w := range p.wrong {
		fmt.Fprintln(i.stderr, w.Error())
	}
}

// read reads parts until the input ends or they are enough.
func (i *importer) read(format string, parts chan<- *importBatch, enough <-chan struct{}) {
	p := &importBatch{done: make(chan struct{})}
	emit := func(end error) (goOn bool) {
		p.end = end
		select {
		case parts <- p:
			p = &importBatch{done: make(chan struct{}), last: p.last}
			return end == nil
		case <-enough:
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
		wrong, only := errors.AsType[rowError](err)
		switch {
		case n <= i.skip && (err == nil || only):
			continue
		case only && i.keepGoing:
			p.wrong = append(p.wrong, wrong)
		case err != nil:
			i.rows = n - 1
			emit(err)
			return
		default:
			text, err := json.Marshal(o)
			if err != nil {
				panic(err) // it is of our own type
			}
			if p.bytes+len(text) >= maxBatchBytes && !emit(nil) {
				return
			}
			p.orders, p.lines, p.bytes = append(p.orders, text), append(p.lines, line), p.bytes+len(text)+1
		}
		p.last = n
		if len(p.orders)+len(p.wrong) == maxBatchRows && !emit(nil) {
			return
		}
	}
}

// send registers a part. Of wrong rows only the query service knows some: its facet has
// a pattern for keys.
func (i *importer) send(ctx context.Context, p *importBatch) {
	defer close(p.done)
	for len(p.orders) > 0 {
		var done entities.RegisterResult
		err := i.api.call(ctx, http.MethodPost, "/entities", entities.RegisterRequest{Source: i.source, Facet: i.facet, Entities: p.orders}, &done)
		if err == nil {
			p.RegisterResult = done
			return
		}
		refused, ok := errors.AsType[invalidItemsError](err)
		if !ok {
			p.failed = err
			return
		}
		wrong := p.removeInvalid(refused)
		if !i.keepGoing || len(wrong) == 0 {
			p.failed = err
			if len(wrong) > 0 {
				p.failed = joinRowErrors(wrong)
			}
			return
		}
		p.wrong = append(p.wrong, wrong...)
	}
}

// removeInvalid takes the orders out that were refused, and returns them.
func (p *importBatch) removeInvalid(refused invalidItemsError) (wrong []rowError) {
	at := map[int]string{}
	for _, e := range refused.items {
		var index int
		if _, err := fmt.Sscanf(e.Pointer, "#/entities/%d", &index); err == nil && index < len(p.orders) {
			at[index] = e.Detail
		}
	}
	orders, lines := p.orders[:0], p.lines[:0]
	for index, order := range p.orders {
		if detail, ok := at[index]; ok {
			wrong = append(wrong, rowError{p.lines[index], errors.New(detail)})
			continue
		}
		orders, lines = append(orders, order), append(lines, p.lines[index])
	}
	p.orders, p.lines = orders, lines
	return wrong
}

// joinRowErrors is the error of rows that are wrong.
func joinRowErrors(wrong []rowError) error {
	var texts []string
	for _, w := range wrong[:min(len(wrong), maxRowErrorsShown)] {
		texts = append(texts, w.Error())
	}
	if more := len(wrong) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d or more others", more))
	}
	return errors.New(strings.Join(texts, "; "))
}
