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

// logLevel are what is logged now, and what is configured: to that it goes back by
// itself, so that nobody finds a disk full of what somebody else wanted to see.
type logLevel struct {
	now        slog.LevelVar
	configured slog.Level

	mu          sync.Mutex
	until       time.Time   // zero: for as long as the process runs
	revertTimer *time.Timer // nil while nothing is changed for a time
}

func newLogLevel(configured slog.Level) *logLevel {
	l := &logLevel{configured: configured}
	l.now.Set(configured)
	return l
}

// logLevelState is what is told of them.
type logLevelState struct {
	Level      slog.Level `json:"level"`
	Configured slog.Level `json:"configured"`
	Until      *time.Time `json:"until"`
}

// set changes the level for a time; 0: for as long as the process runs.
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
			if l.until.Equal(until) { // nobody has changed it since
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

// logLevelRequest asks for a level. For is a duration; empty: ten minutes; 0s: for as long
// as the process runs.
type logLevelRequest struct {
	Level string `json:"level"`
	For   string `json:"for"`
}

const (
	defaultLevelDuration = 10 * time.Minute
	maxLevelDuration     = 24 * time.Hour
)

// parse returns what is ordered.
func (o logLevelRequest) parse() (to slog.Level, d time.Duration, err error) {
	if err := to.UnmarshalText([]byte(o.Level)); err != nil || strings.ContainsAny(o.Level, "+-") {
		return 0, 0, fmt.Errorf("level: %q must be debug, info, warn or error", o.Level)
	}
	d = defaultLevelDuration
	if o.For != "" {
		if d, err = time.ParseDuration(o.For); err != nil || d < 0 || d > maxLevelDuration {
			return 0, 0, fmt.Errorf("for: %q must be a duration up to 24h, as in 10m, or 0s for as long as the process runs", o.For)
		}
	}
	return to, d, nil
}

// logLevelPath is where the level is shown and changed, by each role at its ops.listen
// and by the query service as a part of its admin API.
const logLevelPath = "/admin/v1/log"

// handler shows and changes the level of this process. noted writes the audit entry of a
// change; nil at ops.listen, where the actor is not known and a role may not write the audit.
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
				// Without the database the level is changed all the same: its log is needed then.
				if noted != nil {
					if err := noted(r.Context(), logLevelAuditEntry(by, l.now.Level(), to, d)); err != nil {
						log.Warn("change of the log level is not in the audit", "level", to.String(), "by", by, "err", err)
					}
				}
				tell := func() { log.Warn("the level of logs was changed", "level", to.String(), "for", d, "by", by) }
				if to > slog.LevelWarn { // afterwards nobody would see it
					tell()
				}
				l.set(to, d)
				if to <= slog.LevelWarn {
					tell()
				}
				return adminapi.Answer{Body: l.state()}, nil
			},
		}},
		Explain:     func(error) *problem.HTTPError { return nil },
		Unavailable: "The level can't be changed at the moment.",
		CrossSite:   "The level of logs is not changed by pages of another site.",
		Log:         log,
	}.Handler()
}

// logLevelAuditEntry returns the audit entry of a change of the log level of this process.
func logLevelAuditEntry(by string, from, to slog.Level, d time.Duration) store.AuditEntry {
	text := func(level slog.Level) json.RawMessage {
		text, err := json.Marshal(map[string]string{"process": workerName(), "level": level.String(), "for": d.String()})
		if err != nil {
			panic(err) // a map of strings
		}
		return text
	}
	return store.AuditEntry{At: time.Now().UTC().Truncate(time.Microsecond), Actor: by, Action: "log-level", Before: text(from), After: text(to)}
}

// requireLoopback lets only callers on this machine in: health and metrics may be open to a
// whole network, and what changes the process is not.
func requireLoopback(next http.Handler) http.Handler {
	return requireLoopbackHost(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		here := err == nil && net.ParseIP(host).IsLoopback() && access.Loopback(r.Host) && !access.Forwarded(r.Header)
		if !here {
			_ = problem.New(http.StatusForbidden, "loopback-only", "The level of logs is changed from this machine alone, at a loopback address.").Write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	}))
}

// log shows or changes the level of a running process.
func (p *program) log() *cobra.Command {
	var addr, lasting string
	c := &cobra.Command{
		Use:   "log [debug|info|warn|error]",
		Short: "Show what a running process logs, or change it for a while",
		Long: `Show the level from which on a running process logs, or change it. After a while it goes back
to log.level by itself. A process listens for this at ops.listen, to this machine alone; a query
service besides at its own address, to whoever may administer.`,
		Example: `  freshet log                       # of the process at ops.listen
  freshet log debug --for 5m
  freshet log warn --for 0s --addr 127.0.0.1:8080   # of that query service, until it stops`,
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
	c.Flags().StringVar(&lasting, "for", defaultLevelDuration.String(), "for how long; 0s: until it stops")
	c.Flags().StringVar(&addr, "addr", "", "address of a process (default from ops.listen); a token in FRESHET_TOKEN is sent along")
	return c
}

// String tells them in a line.
func (s logLevelState) String() string {
	text := strings.ToLower(s.Level.String())
	switch {
	case s.Until != nil:
		text += fmt.Sprintf(", until %s; then %s", s.Until.Local().Format(time.TimeOnly), strings.ToLower(s.Configured.String()))
	case s.Level != s.Configured:
		text += fmt.Sprintf(", until it stops; %s is configured", strings.ToLower(s.Configured.String()))
	}
	return text
}
