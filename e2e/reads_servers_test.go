package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/store"
)

// memory is the path prefix under which the bare server responds from memory.
const memory = "/memory"

// serveBare is a minimal server that returns stored payloads, without freshness, the JSON envelope
// or metrics. Its connection pool has the configuration of postgres.Open.
func serveBare(url string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	config, err := pgxpool.ParseConfig(url)
	fail(err)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	fail(err)
	get := func(c echo.Context) (payload []byte, err error) {
		err = pool.QueryRow(c.Request().Context(), "SELECT payload FROM snapshot_payload WHERE source = $1 AND facet = $2 AND key = $3",
			c.Param("source"), c.Param("facet"), c.Param("key")).Scan(&payload)
		return payload, err
	}
	send := func(c echo.Context, payload []byte, err error) error {
		if err != nil {
			return err
		}
		h := c.Response().Header()
		h.Set("Content-Encoding", store.Zstd)
		h.Set("Content-Length", strconv.Itoa(len(payload))) // without Content-Length net/http would use chunked encoding
		return c.Blob(http.StatusOK, "application/json", payload)
	}
	const route = "/v1/:source/:facet/:key"
	e := echo.New()
	e.GET(route, func(c echo.Context) error {
		payload, err := get(c)
		return send(c, payload, err)
	})
	var known sync.Map
	e.GET(memory+route, func(c echo.Context) error {
		if payload, ok := known.Load(c.Param("key")); ok {
			return send(c, payload.([]byte), nil)
		}
		payload, err := get(c)
		known.Store(c.Param("key"), payload)
		return send(c, payload, err)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	fmt.Fprintf(os.Stderr, "bare server at http://%s\n", l.Addr())
	fail(http.Serve(l, e))
}

// bareServer starts the test binary as a minimal HTTP server (serveBare). The test compares its
// figures with the figures of freshet.
func (f *fleet) bareServer() *harness.Process {
	f.Helper()
	program, err := os.Executable()
	f.check(err)
	p, err := f.StartProgram(f.Context(), "bare", "bare server at (http://[0-9.:]+)", nil, program, "-bare", f.Database)
	f.check(err)
	return p
}

// nginx is an nginx process that serves responses from its cache (proxy_cache). The cached
// responses come from an HTTP server in the test process, the origin.
type nginx struct {
	at, version string
	master      int
	origin      atomic.Pointer[map[string]page] // the origin's responses, by path and encoding
	asked       atomic.Int64
	warmed      int64
}

type page struct {
	header http.Header
	body   []byte
}

// nginxConfig follows the documentation of nginx for a cache of small files.
const nginxConfig = `
%s
daemon off;
worker_processes auto;
pid %[2]s/pid;
error_log stderr warn;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_timeout 300s;
  keepalive_requests 1000000000;
  open_file_cache max=10000 inactive=1h;
  open_file_cache_valid 1h;
  client_body_temp_path %[2]s/body;
  proxy_temp_path %[2]s/proxy;
  fastcgi_temp_path %[2]s/fastcgi;
  uwsgi_temp_path %[2]s/uwsgi;
  scgi_temp_path %[2]s/scgi;
  proxy_cache_path %[2]s/cache levels=1:2 keys_zone=reads:16m inactive=1h use_temp_path=off;
  server {
    listen %[3]s;
    location / {
      proxy_pass %[4]s;
      proxy_cache reads;
      proxy_cache_key "$request_uri $http_accept_encoding";
      proxy_cache_valid 200 1h;
      proxy_ignore_headers Cache-Control Expires Vary;
    }
  }
}
`

func newNginx(t *testing.T) *nginx {
	t.Helper()
	path := tool(t, "nginx", "nginx-light")
	x := &nginx{}
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.asked.Add(1)
		p, ok := (*x.origin.Load())[r.URL.Path+" "+r.Header.Get("Accept-Encoding")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		maps.Copy(w.Header(), p.header)
		_, _ = w.Write(p.body)
	}))
	t.Cleanup(origin.Close)
	out, err := exec.CommandContext(t.Context(), path, "-v").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	_, x.version, _ = strings.Cut(strings.TrimSpace(string(out)), "version: ")

	dir, address, user := t.TempDir(), freeAddress(t), ""
	if os.Getuid() == 0 {
		user = "user root;" // root owns the test's directory, so nginx's workers must run as root to use it
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, user, dir, address, origin.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), path, "-p", dir, "-e", "stderr", "-c", config)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	x.at, x.master = "http://"+address, cmd.Process.Pid
	listens := func() (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("nginx ended:\n%s", output.String())
		default:
		}
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil, nil
	}
	if err := harness.Until(t.Context(), timeout, "an nginx that listens", listens); err != nil {
		t.Fatal(err)
	}
	return x
}

// processes returns the process ids of nginx's workers.
func (x *nginx) processes(t *testing.T) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", x.master, x.master))
	if err != nil {
		t.Fatal(err)
	}
	for child := range strings.FieldsSeq(string(text)) {
		title, err := os.ReadFile("/proc/" + child + "/cmdline")
		if err != nil || !bytes.HasPrefix(title, []byte("nginx: worker")) {
			continue // not a worker, but nginx's cache manager or cache loader
		}
		var pid int
		if _, err := fmt.Sscan(child, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		t.Fatal("nginx has no workers")
	}
	return pids
}

// warm fills the cache of nginx with freshet's responses for the keys. If freshet responds with
// another encoding than the requested one, warm encodes the body itself.
func (x *nginx) warm(f *fleet, api string, keys keyRange) (at string) {
	f.Helper()
	pages := map[string]page{}
	for i := range keys.count {
		path := keys.path(f.Source, i)
		for _, encoding := range encodings {
			header, wire, plain := f.readEncoded(api+path, encoding)
			headers := http.Header{"Content-Type": header["Content-Type"], "Etag": header["Etag"], "Cache-Control": header["Cache-Control"]}
			switch got := header.Get("Content-Encoding"); {
			case got == encoding || (got == "" && encoding == "identity"):
			case encoding == "zstd":
				wire = store.Encode(plain).Bytes
			case encoding == "gzip":
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				_, err := z.Write(plain)
				if err != nil || z.Close() != nil {
					f.Fatal(err)
				}
				wire = b.Bytes()
			}
			if encoding != "identity" {
				headers.Set("Content-Encoding", encoding)
			}
			headers.Set("Content-Length", fmt.Sprint(len(wire)))
			pages[path+" "+encoding] = page{headers, wire}
		}
	}
	x.origin.Store(&pages)
	for i := range keys.count {
		for _, encoding := range encodings {
			f.onlyAnswer(x.at+keys.path(f.Source, i), encoding)
		}
	}
	x.warmed = x.asked.Load()
	return x.at
}

// freeAddress returns a loopback address on which no process listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
