package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/access"
	adminapi "github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

// logLevel is the current log level of this process. A changed level reverts to the configured
// one after a while, so that debug logs do not fill a disk. Its methods may be called
// concurrently.
type logLevel struct {
	now        slog.LevelVar
	configured slog.Level

	mu          sync.Mutex
	until       time.Time   // time at which the level reverts to the configured one; zero: never
	revertTimer *time.Timer // nil if no revert is scheduled
}

func newLogLevel(configured slog.Level) *logLevel {
	l := &logLevel{configured: configured}
	l.now.Set(configured)
	return l
}

// logLevelState is the response of GET and PUT /admin/v1/log.
type logLevelState struct {
	Level      slog.Level `json:"level"`
	Configured slog.Level `json:"configured"`
	Until      *time.Time `json:"until"`
}

// set changes the level for a duration; 0: until the process ends.
func (l *logLevel) set(to slog.Level, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revertTimer != nil {
		l.revertTimer.Stop()
		l.revertTimer = nil
	}
	l.now.Set(to)
	l.until = time.Time{}
	if d > 0 && to != l.configured {
		until := time.Now().Add(d)
		l.until = until
		l.revertTimer = time.AfterFunc(d, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.until.Equal(until) { // the level has not been changed since this timer was started
				l.now.Set(l.configured)
				l.until, l.revertTimer = time.Time{}, nil
			}
		})
	}
}

func (l *logLevel) state() logLevelState {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := logLevelState{Level: l.now.Level(), Configured: l.configured}
	if !l.until.IsZero() {
		until := l.until.UTC().Truncate(time.Second)
		s.Until = &until
	}
	return s
}

// logLevelRequest is the body of PUT /admin/v1/log. For is a duration; empty: ten minutes; 0s:
// until the process ends.
type logLevelRequest struct {
	Level string `json:"level"`
	For   string `json:"for"`
}

const (
	defaultLevelDuration = 10 * time.Minute
	maxLevelDuration     = 24 * time.Hour
)

// parse returns the level and the duration of a request, or an error that names the invalid field.
func (o logLevelRequest) parse() (to slog.Level, d time.Duration, err error) {
	if err := to.UnmarshalText([]byte(o.Level)); err != nil || strings.ContainsAny(o.Level, "+-") {
		return 0, 0, fmt.Errorf("level: %q must be debug, info, warn or error", o.Level)
	}
	d = defaultLevelDuration
	if o.For != "" {
		if d, err = time.ParseDuration(o.For); err != nil || d < 0 || d > maxLevelDuration {
			return 0, 0, fmt.Errorf("for: %q must be a duration up to 24h, as in 10m, or 0s for no end", o.For)
		}
	}
	return to, d, nil
}

// logLevelPath is the route of the log level: on ops.listen of each role, and in the query
// service's admin API.
const logLevelPath = "/admin/v1/log"

// handler returns the handler of logLevelPath. noted writes the audit entry of a change. It is
// nil on ops.listen, where the actor is unknown and the role may not write to the audit log.
func (l *logLevel) handler(log *slog.Logger, noted func(context.Context, store.AuditEntry) error) http.Handler {
	return adminapi.API{
		Paths: map[string]map[string]adminapi.Handle{logLevelPath: {
			http.MethodGet: func(*http.Request) (adminapi.Answer, error) { return adminapi.Answer{Body: l.state()}, nil },
			http.MethodPut: func(r *http.Request) (adminapi.Answer, error) {
				var o logLevelRequest
				from := json.NewDecoder(r.Body)
				from.DisallowUnknownFields()
				if err := from.Decode(&o); err != nil {
					return adminapi.Answer{}, problem.Body(err)
				}
				to, d, err := o.parse()
				if err != nil {
					return adminapi.Answer{}, problem.New(http.StatusBadRequest, "invalid-level", "The "+err.Error()+".")
				}
				by := actor(r)
				if by == "" {
					by = "ops.listen"
				}
				// A failed audit entry does not prevent the change: while the database is
				// unavailable, debug logs are needed most.
				if noted != nil {
					if err := noted(r.Context(), logLevelAuditEntry(by, l.now.Level(), to, d)); err != nil {
						log.Warn("audit entry for the log level change not written", "level", to.String(), "by", by, "err", err)
					}
				}
				logChange := func() { log.Warn("log level changed", "level", to.String(), "for", d, "by", by) }
				if to > slog.LevelWarn { // log before the change, because the new level suppresses the line
					logChange()
				}
				l.set(to, d)
				if to <= slog.LevelWarn {
					logChange()
				}
				return adminapi.Answer{Body: l.state()}, nil
			},
		}},
		Explain:     func(error) *problem.HTTPError { return nil },
		Unavailable: "The log level can't be changed now.",
		CrossSite:   "Cross-site requests may not change the log level.",
		Log:         log,
	}.Handler()
}

// logLevelAuditEntry returns the audit entry for a change of this process's log level.
func logLevelAuditEntry(by string, from, to slog.Level, d time.Duration) store.AuditEntry {
	text := func(level slog.Level) json.RawMessage {
		text, err := json.Marshal(map[string]string{"process": workerName(), "level": level.String(), "for": d.String()})
		if err != nil {
			panic(err) // a map of strings can always be encoded
		}
		return text
	}
	return store.AuditEntry{At: time.Now().UTC().Truncate(time.Microsecond), Actor: by, Action: "log-level", Before: text(from), After: text(to)}
}

// requireLoopback rejects requests that do not come from this machine. ops.listen may be
// reachable from a network (ops.allowRemote), but the log level must not be changed from there.
func requireLoopback(next http.Handler) http.Handler {
	return requireLoopbackHost(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		here := err == nil && net.ParseIP(host).IsLoopback() && access.Loopback(r.Host) && !access.Forwarded(r.Header)
		if !here {
			_ = problem.New(http.StatusForbidden, "loopback-only", "The log level can be changed only from this machine, through a loopback address.").Write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	}))
}

// log returns the command that shows or changes the log level of a running process.
func (p *program) log() *cobra.Command {
	var addr, lasting string
	c := &cobra.Command{
		Use:   "log [debug|info|warn|error]",
		Short: "Show or change the log level of a running process",
		Long: `Show the log level of a running process, or change it. A changed level reverts to log.level
after --for. Every process accepts this command on ops.listen, from the same machine only. A
query service also accepts it on query.listen, with the scope admin.`,
		Example: `  freshet log                       # the process at ops.listen
  freshet log debug --for 5m
  freshet log warn --for 0s --addr 127.0.0.1:8080   # the query service at this address, with no end`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if addr == "" {
				config, err := p.load()
				if err != nil {
					return err
				}
				addr = config.Ops.TLS.dialURL(config.Ops.Listen)
			}
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			var s logLevelState
			if len(args) == 0 {
				err = api.call(cmd.Context(), http.MethodGet, "/log", nil, &s)
			} else {
				order := logLevelRequest{args[0], lasting}
				if _, _, err := order.parse(); err != nil {
					return usageError{err}
				}
				err = api.call(cmd.Context(), http.MethodPut, "/log", order, &s)
			}
			if err == nil {
				_, err = fmt.Fprintln(p.stdout, s)
			}
			return err
		},
	}
	c.Flags().StringVar(&lasting, "for", defaultLevelDuration.String(), "how long the level is in force; 0s: until the process ends")
	c.Flags().StringVar(&addr, "addr", "", "address of a process (default from ops.listen); FRESHET_TOKEN holds the API key or token")
	return c
}

// String returns the state as one line of text.
func (s logLevelState) String() string {
	text := strings.ToLower(s.Level.String())
	switch {
	case s.Until != nil:
		text += fmt.Sprintf(", until %s; then %s", s.Until.Local().Format(time.TimeOnly), strings.ToLower(s.Configured.String()))
	case s.Level != s.Configured:
		text += fmt.Sprintf(", until the process ends; %s is configured", strings.ToLower(s.Configured.String()))
	}
	return text
}
