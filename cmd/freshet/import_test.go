package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/problem"
)

// fakeEntitiesAPI is a query service that registers entities and rejects keys that contain an x.
type fakeEntitiesAPI struct {
	*testing.T
	server *httptest.Server
	mu     sync.Mutex
	got    map[string]entities.EntitySpec
	sent   int // number of accepted entities
	calls  int
	// before is called before each batch, with the number of the batch and the key of its first
	// entity. An error rejects the batch.
	before func(call int, first string) error
}

func newFakeEntitiesAPI(t *testing.T) *fakeEntitiesAPI {
	t.Helper()
	r := &fakeEntitiesAPI{T: t, got: map[string]entities.EntitySpec{}}
	r.server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.server.Close)
	return r
}

func (r *fakeEntitiesAPI) serve(w http.ResponseWriter, req *http.Request) {
	var b entities.RegisterRequest
	text, err := io.ReadAll(req.Body)
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil || len(text) > 1<<20 || len(b.Entities) > 5000 || len(b.Entities) == 0 || b.Source != "nexon" || b.Facet != "f" {
		r.Errorf("%s %s: got %d bytes, %d entities of %s/%s, %v; want at most 1 MiB, 1 to 5000 entities of nexon/f",
			req.Method, req.URL, len(text), len(b.Entities), b.Source, b.Facet, err)
	}
	r.mu.Lock()
	r.calls++
	call := r.calls
	r.mu.Unlock()
	if r.before != nil {
		if err := r.before(call, string(b.Entities[0])); err != nil {
			_ = problem.New(http.StatusServiceUnavailable, problem.StoreUnavailable, err.Error()).Write(w, req)
			return
		}
	}
	var done entities.RegisterResult
	var orders []entities.EntitySpec
	var wrong []problem.Error
	for i, text := range b.Entities {
		o, err := entities.ParseEntitySpec(text)
		if err != nil {
			r.Errorf("%s: %v", text, err)
		}
		if orders = append(orders, o); strings.Contains(o.Key, "x") && len(wrong) < 2 {
			wrong = append(wrong, problem.Error{Detail: "no key has an x", Pointer: fmt.Sprintf("#/entities/%d", i)})
		}
	}
	if len(wrong) > 0 {
		p := problem.New(http.StatusBadRequest, problem.BadEntities, "Some are wrong.")
		p.Errors = wrong
		_ = p.Write(w, req)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent += len(orders)
	for _, o := range orders {
		if _, known := r.got[o.Key]; known {
			done.Known++
		} else {
			done.Added++
		}
		r.got[o.Key] = o
	}
	_ = json.NewEncoder(w).Encode(done)
}

// imports imports the input with `freshet entities import` and waits until the command ends.
func (r *fakeEntitiesAPI) imports(ctx context.Context, in io.Reader, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := newRoot([]string{"FRESHET_ADDR=" + r.server.URL}, &out, &errs)
	root.SetIn(in)
	root.SetArgs(append([]string{"entities", "import", "--source", "nexon", "--facet", "f"}, args...))
	err = root.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// tableOf returns the text of an import file with n rows for each format: "csv" and "jsonl".
func tableOf(n int) map[string]string {
	var c, j strings.Builder
	c.WriteString("key,tier,enabled,ocid\n")
	for i := range n {
		tier := []string{"hot", "warm", "cold", ""}[i%4]
		fmt.Fprintf(&c, "k%06d,%s,%v,\"<%d>\"\n", i, tier, i%5 != 0, i)
		fmt.Fprintf(&j, `{"key":"k%06d","tier":%q,"enabled":%v,"params":{"ocid":"<%d>"}}`+"\n", i, tier, i%5 != 0, i)
	}
	return map[string]string{"csv": c.String(), "jsonl": j.String()}
}

func (r *fakeEntitiesAPI) complete(n int) {
	r.Helper()
	if len(r.got) != n {
		r.Errorf("registered entities: got %d, want %d", len(r.got), n)
	}
	for i := range n {
		o := r.got[fmt.Sprintf("k%06d", i)]
		if o.Tier != []string{"hot", "warm", "cold", ""}[i%4] || *o.Enabled != (i%5 != 0) || o.Params["ocid"] != fmt.Sprintf("<%d>", i) {
			r.Fatalf("row %d: got %+v, want tier %q, enabled %v, ocid <%d>",
				i+1, o, []string{"hot", "warm", "cold", ""}[i%4], i%5 != 0, i)
		}
	}
}

func TestImport_CSVAndJSONL(t *testing.T) {
	for format, text := range tableOf(12_000) {
		for _, in := range []string{text, "\ufeff" + strings.ReplaceAll(text, "\n", "\r\n")} {
			r := newFakeEntitiesAPI(t)
			stdout, stderr, err := r.imports(t.Context(), strings.NewReader(in))
			if err != nil || stdout != "12000 rows, 12000 added, 0 known\n" || stderr != "" {
				t.Errorf("%s: got stdout %q, stderr %q, %v; want 12000 rows, 12000 added, 0 known", format, stdout, stderr, err)
			}
			r.complete(12_000)
		}
	}
}

func TestImport_ResumesWithSkip(t *testing.T) {
	const n = 30_000
	for format, text := range tableOf(n) {
		r := newFakeEntitiesAPI(t)
		ctx, cancel := context.WithCancel(t.Context())
		r.before = func(call int, _ string) error {
			if call == 3 {
				cancel()
			}
			return nil
		}
		stdout, _, err := r.imports(ctx, strings.NewReader(text))
		skip := skipOf(t, err)
		if stdout != "" || !strings.HasPrefix(err.Error(), "interrupted; stopped after row ") || skip < 15_000 || skip == n {
			t.Fatalf("%s: got stdout %q, %d rows to skip, %v; want none, 15000 or more and less than %d, an interrupted import",
				format, stdout, skip, err, n)
		}
		before := r.sent
		if before != skip { // the row number in the error must equal the number of registered rows: the requests in flight at the interrupt count too
			t.Errorf("registered entities: got %d, want %d as in the error", before, skip)
		}
		stdout, stderr, err := r.imports(t.Context(), strings.NewReader(text), "--skip", strconv.Itoa(skip))
		if want := fmt.Sprintf("%d rows, %d added, 0 known\n", n-skip, n-skip); stdout != want || stderr != "" || err != nil {
			t.Errorf("%s: got stdout %q, stderr %q, %v; want %q", format, stdout, stderr, err, want)
		}
		r.complete(n)
	}
}

var resumeHint = regexp.MustCompile(`; stopped after row (\d+); continue with --skip (\d+)$`)

func skipOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		t.Fatal("import: got no error, want one")
	}
	m := resumeHint.FindStringSubmatch(err.Error())
	if m == nil || m[1] != m[2] {
		t.Fatalf("got %v, want an error with the row at which to continue", err)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestImport_ServerFailureLeavesNoGap(t *testing.T) {
	const n = 36_000
	text := tableOf(n)["csv"]
	r := newFakeEntitiesAPI(t)
	// The fourth batch is rejected only after the next three batches were accepted. These three
	// batches do not count as imported, because --skip must not skip the fourth one.
	later := make(chan struct{})
	var behind atomic.Int64
	r.before = func(_ int, first string) error {
		if strings.Contains(first, "k015000") {
			<-later
			return errors.New("the database is away")
		}
		if first > `{"key":"k015000` && behind.Add(1) == maxBatchesInFlight-1 {
			close(later)
		}
		return nil
	}
	_, _, err := r.imports(t.Context(), strings.NewReader(text))
	skip := skipOf(t, err)
	if !strings.HasPrefix(err.Error(), "the database is away; stopped") || skip != 15_000 || r.sent != 30_000 || len(r.got) != r.sent {
		t.Fatalf("got %d rows sent, %d registered, %d to skip, %v; want 30000, 30000, 15000, %q",
			r.sent, len(r.got), skip, err, "the database is away; stopped")
	}
	for i := range skip {
		if _, there := r.got[fmt.Sprintf("k%06d", i)]; !there {
			t.Fatalf("skipped row %d: got no registration, want one", i+1)
		}
	}
	if _, there := r.got[fmt.Sprintf("k%06d", skip)]; there {
		t.Errorf("row %d, the first one not skipped: got a registration, want none", skip+1)
	}
	r.before = nil
	stdout, _, err := r.imports(t.Context(), strings.NewReader(text), "--skip", strconv.Itoa(skip))
	if err != nil || !strings.HasPrefix(stdout, fmt.Sprintf("%d rows, ", n-skip)) {
		t.Errorf("got %q, %v, want %d rows", stdout, err, n-skip)
	}
	r.complete(n)
	r = newFakeEntitiesAPI(t)
	r.server.Close()
	if _, _, err := r.imports(t.Context(), strings.NewReader("key\na\n")); err == nil || !strings.Contains(err.Error(), "no response from") || strings.Contains(err.Error(), "--skip") {
		t.Error(err)
	}
}

// endless is an input with infinitely many rows. It counts the rows that were read.
type endless struct {
	rows atomic.Int64
	rest []byte
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		e.rest = fmt.Appendf(e.rest, "{\"key\":\"k%06d\"}\n", e.rows.Add(1)-1)
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func TestImport_ReadsOnlyWhatIsInFlight(t *testing.T) {
	r := newFakeEntitiesAPI(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var in endless
	full, go1 := make(chan struct{}), make(chan struct{})
	r.before = func(call int, _ string) error {
		if call == maxBatchesInFlight {
			close(full)
		}
		if call <= maxBatchesInFlight {
			<-go1
		}
		return nil
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := r.imports(ctx, &in)
		ended <- err
	}()
	<-full
	cancel() // cancel while four batches are in flight without a response
	close(go1)
	if n := skipOf(t, <-ended); n != maxBatchesInFlight*maxBatchRows || r.calls != maxBatchesInFlight {
		t.Errorf("got %d rows in %d calls, want %d in %d", n, r.calls, maxBatchesInFlight*maxBatchRows, maxBatchesInFlight)
	}
	if most := (maxBatchesInFlight + 1) * maxBatchRows; in.rows.Load() > int64(most+10) {
		t.Errorf("rows read with %d in flight: got %d, want at most %d", maxBatchesInFlight*maxBatchRows, in.rows.Load(), most+10)
	}
}

func TestImport_StopsAtInvalidRow(t *testing.T) {
	long := strings.Repeat("v", 70_000)
	for _, c := range []struct{ in, want string }{
		{"key,tier\na,hot\n\nb c\n", `line 4: the row has 1 fields, the header has 2; stopped after row 1; continue with --skip 1`},
		{"key,tier\na,hot\nb,lukewarm\nc,hot\n", `line 3: the tier "lukewarm" must be hot, warm or cold; stopped after row 1`},
		{"key,enabled\na,1\nb,yes\n", `line 3: enabled is "yes"; it must be true or false; stopped after row 1`},
		{"key\na\n..\n", `line 3: the key may not have the part ".."; stopped after row 1`},
		{"key,p\na,1\n\"b,1\nc,1\n", `line 3: extraneous or missing " in quoted-field; stopped after row 1`},
		{"key,p\na,1\nb,\"1\"\"2\"3\n", `line 3: extraneous or missing " in quoted-field; stopped after row 1`},
		{"key\na\n\xff\n", `line 3: the key is not valid UTF-8; stopped after row 1`},
		{"key,p\na,1\nb,\x01\n", `line 3: the param p must be UTF-8 without control characters; stopped after row 1`},
		{"key,p\na,1\nb," + long + "\n", `line 3: longer than the maximum of 65536 bytes; stopped after row 1`},
		{"key\na\nx\n", `line 3: no key has an x`}, // the valid row a is not imported either, because a request registers all of its rows or none
		{"key\nx1\na\nx2\nx3\n", `line 2: no key has an x; line 4: no key has an x`},
		{"name,tier\na,hot\n", `line 1: the header has no column key; it has ["name" "tier"]. CSV begins with a header line, as in key,tier`},
		{"\n\nkey,key\na,a\n", `line 3: the header has an empty or a duplicate column name`},
		{"key,\na,a\n", `line 1: the header has an empty or a duplicate column name`},
		{"", `the input is empty; CSV begins with a header line, as in key,tier`},
		{"{\"key\":\"a\"}\n{\"key\":\"b\",\"teir\":\"hot\"}\n", `line 2: unknown field "teir"; there are key, params, tier and enabled; stopped after row 1`},
		{"{\"key\":\"a\"}\nb\n", `line 2: it must be an object, as in {"key":"somebody","tier":"hot"}; stopped after row 1`},
		{"[{\"key\":\"a\"}]\n", `the input is a JSON array; write one JSON object per line`},
		{"{\"key\":\"a\"} {\"key\":\"b\"}\n", `line 1: unexpected data after the JSON value`},
	} {
		r := newFakeEntitiesAPI(t)
		stdout, stderr, err := r.imports(t.Context(), strings.NewReader(c.in))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "continue with") != strings.Contains(c.want, "stopped") || stdout != "" || stderr != "" {
			t.Errorf("%.80q: got stdout %q, stderr %q, %v; want no output, an error that begins with %q, with a row at which to continue: %v",
				c.in, stdout, stderr, err, c.want, strings.Contains(c.want, "stopped"))
		}
		if want := strings.Count(c.want, "after row 1"); len(r.got) != want {
			t.Errorf("%.80q: %d are registered, want %d", c.in, len(r.got), want)
		}
	}
}

func TestImport_KeepGoingSkipsInvalidRows(t *testing.T) {
	in := "key, tier\na,hot\nx1,hot\nb,lukewarm\nx2,hot\nx3,hot\nc,cold\n\"d,hot\ne,warm\n"
	r := newFakeEntitiesAPI(t)
	stdout, stderr, err := r.imports(t.Context(), strings.NewReader(in), "--keep-going")
	wrong := "line 3: no key has an x\nline 4: the tier \"lukewarm\" must be hot, warm or cold\nline 5: no key has an x\nline 6: no key has an x\n" +
		"line 8: extraneous or missing \" in quoted-field\n"
	if stdout != "8 rows, 3 added, 0 known, 5 invalid\n" || stderr != wrong || !errors.As(err, new(partialError)) {
		t.Errorf("got %q, %q, %v; want 8 rows, 3 added, 0 known, 5 invalid, %q, a partial error", stdout, stderr, err, wrong)
	}
	for _, key := range []string{"a", "c", "e"} {
		if _, there := r.got[key]; !there {
			t.Errorf("%s: got no registration, want one", key)
		}
	}
	stdout, stderr, err = r.imports(t.Context(), strings.NewReader("key\nx\n"), "--keep-going")
	if stdout != "1 rows, 0 added, 0 known, 1 invalid\n" || stderr != "line 2: no key has an x\n" || !errors.As(err, new(partialError)) {
		t.Errorf("got %q, %q, %v; want 1 rows, 0 added, 0 known, 1 invalid, %q, a partial error",
			stdout, stderr, err, "line 2: no key has an x\n")
	}
	stdout, _, err = r.imports(t.Context(), strings.NewReader(in), "--keep-going", "--skip", "7")
	if stdout != "1 rows, 0 added, 1 known\n" || err != nil {
		t.Errorf("got %q, %v; want 1 rows, 0 added, 1 known", stdout, err)
	}
}

func TestImport_SkipCountsEachRowOnce(t *testing.T) {
	r := newFakeEntitiesAPI(t)
	for _, c := range []struct{ skip, in, stdout, stderr, err string }{
		{"1", "key\na\nb\n", "1 rows, 1 added, 0 known\n", "", ""},
		{"2", "key\na\nb\n", "0 rows, 0 added, 0 known\n", "", ""},
		{"3", "key\na\nb\n", "0 rows, 0 added, 0 known\n", "warning: --skip 3 skips all of the 2 rows; check that it is the same input\n", ""},
		{"1", "key\na\nx\n", "", "", "line 3: no key has an x"}, // nothing was imported, so the error suggests no other --skip
		{"1", "key\na\nb\n\xff\n", "", "", "line 4: the key is not valid UTF-8; stopped after row 2; continue with --skip 2"},
		{"1", "nokey\na\n", "", "", `line 1: the header has no column key; it has ["nokey"]. CSV begins with a header line, as in key,tier`},
	} {
		stdout, stderr, err := r.imports(t.Context(), strings.NewReader(c.in), "--skip", c.skip)
		if stdout != c.stdout || stderr != c.stderr || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s of %q: got %q, %q, %v; want %q, %q, %q", c.skip, c.in, stdout, stderr, err, c.stdout, c.stderr, c.err)
		}
	}
}

func TestImport_ErrorTextJoinsSentences(t *testing.T) {
	const away = "The database is away."
	r := newFakeEntitiesAPI(t)
	r.before = func(_ int, first string) error {
		if strings.Contains(first, "k000000") {
			return nil
		}
		return errors.New(away)
	}
	_, _, err := r.imports(t.Context(), strings.NewReader(tableOf(6000)["csv"]))
	if want := away + " Stopped after row 5000; continue with --skip 5000"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestImport_CSVVariants(t *testing.T) {
	r := newFakeEntitiesAPI(t)
	in := "\ufeffocid,key,\"a \"\"param\"\"\",enabled,tier\r\n\r\n,\"a,b\",\"\"\"q\"\"\",,\r\n1, c ,,F,hot"
	if stdout, stderr, err := r.imports(t.Context(), strings.NewReader(in)); stdout != "2 rows, 2 added, 0 known\n" || err != nil {
		t.Fatalf("got %q, %q, %v; want 2 rows, 2 added, 0 known", stdout, stderr, err)
	}
	for key, want := range map[string]string{"a,b": `{"key":"a,b","params":{"a \"param\"":"\"q\""}}`, " c ": `{"key":" c ","params":{"ocid":"1"},"tier":"hot","enabled":false}`} {
		if text, err := json.Marshal(r.got[key]); err != nil || string(text) != want {
			t.Errorf("%q: got %s, want %s", key, text, want)
		}
	}
	in = `{"key":"a"}`
	if stdout, _, err := r.imports(t.Context(), strings.NewReader(in), "--format", "csv"); err == nil || !strings.Contains(err.Error(), `line 1: bare "`) {
		t.Errorf("got %q, %v, want an error that contains %q", stdout, err, `line 1: bare "`)
	}
}

func TestImport_SplitsBatchesByBytes(t *testing.T) {
	r := newFakeEntitiesAPI(t)
	var in strings.Builder
	in.WriteString("key,p\n")
	for i := range 1000 { // each < of a row becomes six bytes in JSON (\u003c), so one row has about 18 kB
		fmt.Fprintf(&in, "k%06d,%s\n", i, strings.Repeat("<", 3000))
	}
	stdout, _, err := r.imports(t.Context(), strings.NewReader(in.String()))
	if err != nil || stdout != "1000 rows, 1000 added, 0 known\n" || r.calls < 18 || r.calls > 20 {
		t.Errorf("got %q in %d calls, %v; want 1000 rows, 1000 added, 0 known in 18 to 20 calls", stdout, r.calls, err)
	}
}

func TestImport_ExitCodes(t *testing.T) {
	r := newFakeEntitiesAPI(t)
	file := filepath.Join(t.TempDir(), "rows.csv")
	if err := os.WriteFile(file, []byte("key\na\nx\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"FRESHET_ADDR=" + r.server.URL}
	for want, args := range map[int][]string{
		1: {"--source", "nexon", "--facet", "f", file},
		4: {"--source", "nexon", "--facet", "f", "--keep-going", file},
		2: {"--source", "nexon", file},
	} {
		if code, stdout, stderr := command(t, env, append([]string{"entities", "import"}, args...)...); code != want {
			t.Errorf("%q: got exit %d, want %d: %s%s", args, code, want, stdout, stderr)
		}
	}
	if code, _, stderr := command(t, env, "entities", "import", "--source", "nexon", "--facet", "f", filepath.Dir(file)); code != 1 || !strings.HasSuffix(stderr, "is a directory; name a file\n") {
		t.Errorf("directory: got exit %d, output %s; want 1, a text that ends with %q", code, stderr, "is a directory; name a file\n")
	}
	if code, _, stderr := command(t, env, "entities", "import", "--source", "nexon", "--facet", "f", file+"s"); code != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("missing file: got exit %d, output %s; want 1, a text that contains %q", code, stderr, "no such file")
	}
}

func TestImport_ShowsProgressBar(t *testing.T) {
	var out bytes.Buffer
	in := &countingReader{in: strings.NewReader("0123456789"), size: 20}
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Fatal(err)
	}
	p := progress{out: &out, input: in}
	p.show(500, p.started.Add(2_000_000_000))
	p.terminal = true
	p.show(500, p.started.Add(2_000_000_000))
	p.clear()
	in.size = 0
	p.show(0, p.started)
	want := "50 %, 500 rows, 250 rows/s\n\r[============            ] 50 %, 500 rows, 250 rows/s\x1b[K\r\x1b[K\r0 rows, 0 rows/s\x1b[K"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
