package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/topics"
)

func (p *program) migrate() *cobra.Command {
	c := &cobra.Command{Use: "migrate", Short: "Bring the database up to this release, or show where it is"}
	url := func() (string, error) {
		config, err := p.load()
		if config.Database.DirectURL != "" {
			return config.Database.DirectURL, err
		}
		return config.Database.URL, err
	}
	c.AddCommand(&cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that are missing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, err := url()
			if err != nil {
				return err
			}
			applied, err := postgres.Migrate(cmd.Context(), to)
			for _, m := range applied {
				fmt.Fprintf(p.stdout, "applied %05d %s\n", m.Version, m.Name)
			}
			if err == nil && len(applied) == 0 {
				fmt.Fprintln(p.stdout, "nothing to apply")
			}
			return err
		},
	}, &cobra.Command{
		Use:   "status",
		Short: "List the migrations and whether they are applied",
		RunE: func(cmd *cobra.Command, _ []string) error {
			of, err := url()
			if err != nil {
				return err
			}
			all, err := postgres.Migrations(cmd.Context(), of)
			if err != nil {
				return err
			}
			rows := [][]string{{"VERSION", "APPLIED", "NAME"}}
			for _, m := range all {
				rows = append(rows, []string{fmt.Sprintf("%05d", m.Version), map[bool]string{true: "yes", false: "no"}[m.Applied], m.Name})
			}
			return table(p.stdout, rows)
		},
	})
	return c
}

func (p *program) topics() *cobra.Command {
	c := &cobra.Command{Use: "topics", Short: "Create the sources' topics, or show how far behind they are"}
	var output format
	admin := func() (Config, *kadm.Client, error) {
		config, err := p.load()
		if err != nil {
			return config, nil, err
		}
		opts, err := config.Kafka.kafkaOptions()
		if err != nil {
			return config, nil, err
		}
		client, err := kgo.NewClient(opts...)
		if err != nil {
			return config, nil, fmt.Errorf("make a Kafka client: %w", err)
		}
		return config, kadm.NewClient(client), nil
	}
	ensure := &cobra.Command{
		Use:   "ensure",
		Short: "Create the topics that are missing and report those that differ",
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, client, err := admin()
			if err != nil {
				return err
			}
			defer client.Close()
			for _, name := range slices.Sorted(maps.Keys(config.Sources)) {
				all, err := topics.Ensure(cmd.Context(), client, name, topics.Replication{
					Factor: int(config.Kafka.ReplicationFactor), MinInsync: int(config.Kafka.MinInsync),
				})
				for _, t := range all {
					state := map[bool]string{true: "created", false: "exists"}[t.Created]
					fmt.Fprintf(p.stdout, "%-8s %s\n", state, t.Name)
					for _, d := range t.Drift {
						fmt.Fprintf(p.stderr, "%s: %s; it was left as it is\n", t.Name, d)
					}
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	lag := &cobra.Command{
		Use:   "lag",
		Short: "Show how many records of each lane are not committed",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			config, client, err := admin()
			if err != nil {
				return err
			}
			defer client.Close()
			var all []topics.Lag
			for _, name := range slices.Sorted(maps.Keys(config.Sources)) {
				some, err := topics.Measure(cmd.Context(), client, name)
				if err != nil {
					return err
				}
				all = append(all, some...)
			}
			return printAll(p.stdout, output, all, []string{"SOURCE", "LANE", "BEHIND", "COMMITTED", "GROUP"}, lagRow)
		},
	}
	output.flag(lag)
	c.AddCommand(ensure, lag)
	return c
}

func lagRow(l topics.Lag) [][]string {
	return [][]string{{l.Source, string(l.Lane), strconv.FormatInt(l.Records, 10), strconv.FormatInt(l.Committed, 10), l.Group}}
}

func (p *program) config() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check the configuration, or print it with its defaults"}
	c.AddCommand(&cobra.Command{
		Use:   "check",
		Short: "Say what is wrong with the configuration, or what it comes to",
		RunE: func(*cobra.Command, []string) error {
			config, err := p.load()
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(config.Sources)) {
				s := config.Sources[name]
				quota, err := limiter.NewQuota(s.quota())
				if err != nil {
					return err
				}
				fmt.Fprintf(p.stdout, "%s: %s\n", name, s.BaseURL)
				for _, b := range quota.Bounds() {
					fmt.Fprintf(p.stdout, "  quota   %s: %d in %v; up to %s are used, %s of them kept for HIGH; at most %d can arrive\n",
						b.Name, b.Limit, b.Window, calls(b.PerWindow), calls(b.PerWindow-b.Low), b.Most)
				}
				fmt.Fprintf(p.stdout, "          after Redis lost its state no call is made for %v\n", quota.Quiet())
				for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
					f := s.Facets[facet]
					fmt.Fprintf(p.stdout, "  facet   %s: %s; fresh for %v\n", facet, documented(f), f.FreshFor)
				}
				s.explainCredentials(p.stdout)
				s.explainPrefetch(p.stdout, name)
				for _, at := range places(s.Config) {
					if at.env != "" && at.file == "" && lookup(p.env, at.env) == "" {
						fmt.Fprintf(p.stdout, "  note    %s is not set here; workers will not start without it\n", at.env)
					}
				}
			}
			_, err = fmt.Fprintln(p.stdout, "the configuration is valid")
			return err
		},
	}, &cobra.Command{
		Use:   "print",
		Short: "Print the configuration with all defaults and without secrets",
		RunE: func(*cobra.Command, []string) error {
			config, err := p.load()
			if err != nil {
				return err
			}
			text, err := yaml.Marshal(config.redacted())
			if err != nil {
				return fmt.Errorf("print the configuration: %w", err)
			}
			_, err = p.stdout.Write(text)
			return err
		},
	})
	return c
}

// explainCredentials says which keys each of several is for, and who sees what it fetches.
func (s SourceConfig) explainCredentials(to io.Writer) {
	for _, c := range s.Credentials {
		keys, seen := "all keys", "every reader"
		if c.Keys != "" {
			keys = "keys " + c.Keys
		}
		if c.Visibility != "" {
			seen = c.Visibility
		}
		fmt.Fprintf(to, "  credential %s: for %s, seen by %s\n", c.Name, keys, seen)
	}
}

// explainPrefetch says what is prefetched, on what, and what a change leads to.
func (s SourceConfig) explainPrefetch(to io.Writer, source string) {
	some := false
	for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
		c := s.Prefetch.Facets[facet]
		var how string
		switch c.Mode {
		case scheduler.Off:
		case scheduler.Tiers:
			how = fmt.Sprintf("every %v, %v or %v, by how much it is read", c.Tiers.Hot.Every, c.Tiers.Warm.Every, c.Tiers.Cold.Every)
		case scheduler.Adaptive:
			how = fmt.Sprintf("every %v to %v, by how often it changes and is read", c.Least, c.Most)
		}
		if how != "" {
			if c.NotBefore > 0 {
				text, _ := c.NotBefore.MarshalText()
				how += fmt.Sprintf(", not before %s in %s", text, cmp.Or(c.TimeZone, "UTC"))
			}
			some = true
			fmt.Fprintf(to, "  prefetch %s: %s\n", facet, how)
			if by := judgedBy(c.Active); by != "" {
				fmt.Fprintf(to, "           only what is active, by %s\n", by)
			}
		}
		for _, other := range slices.Sorted(maps.Keys(c.Triggers)) {
			fmt.Fprintf(to, "           a change of %s refreshes %s\n", facet, other)
		}
		if s.Facets[facet].Changes {
			fmt.Fprintf(to, "           changes of %s are told on %s\n", facet, schemas.ChangeTopic(source))
		}
	}
	if !some {
		return
	}
	spending := s.spending()
	words, hours := []string{""}, false
	for i, c := range spending.Ceilings {
		switch {
		case c.From != c.To:
			hours = true
			words = append(words, fmt.Sprintf("at most %v from %d to %d h", c.Rate, c.From, c.To))
		case i == 0:
			words = append(words, fmt.Sprintf("at all hours at most %v", c.Rate))
		default:
			words = append(words, fmt.Sprintf("else at most %v", c.Rate))
		}
	}
	if hours {
		words = append(words, "hours of "+cmp.Or(spending.TimeZone, "UTC"))
	}
	fmt.Fprintf(to, "           of what LOW has left%s\n", strings.Join(words, ", "))
}

// judgedBy names what an entity is judged by.
func judgedBy(a scheduler.Active) string {
	var by []string
	if a.Status.Path != "" {
		by = append(by, a.Status.Path)
	}
	by = append(by, a.Unless...)
	for _, name := range a.Params {
		by = append(by, "param "+name)
	}
	return strings.Join(by, ", ")
}

// calls writes a number of calls, which may have a fraction.
func calls(n float64) string {
	return strconv.FormatFloat(math.Round(10*n)/10, 'f', -1, 64)
}

func (p *program) healthcheck() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a running role whether it is ready (for container health checks)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := p.load()
			if err != nil {
				return err
			}
			override(&config.Ops.Listen, address)
			host, port, err := net.SplitHostPort(config.Ops.Listen)
			if err != nil {
				return usageError{fmt.Errorf("--addr is %q; it must be host:port", config.Ops.Listen)}
			}
			if host == "" || host == "0.0.0.0" || host == "::" {
				host = "127.0.0.1"
			}
			client := &http.Client{Timeout: 3 * time.Second}
			req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", http.NoBody)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return fmt.Errorf("nothing answers: %w", err)
			}
			defer func() { _ = resp.Body.Close() }()
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
			if resp.StatusCode != http.StatusOK {
				return errors.New(strings.TrimSpace(string(text)))
			}
			_, err = fmt.Fprint(p.stdout, string(text))
			return err
		},
	}
	c.Flags().StringVar(&address, "addr", "", "address of the role's health (default from ops.listen)")
	return c
}
