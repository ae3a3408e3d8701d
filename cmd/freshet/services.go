package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/topics"
)

func migrateCommand(p *program) *cobra.Command {
	c := &cobra.Command{Use: "migrate", Short: "Apply the database migrations of this release, or list them"}
	url := func() (string, error) {
		config, err := p.Load(app.OptionalSources)
		return cmp.Or(config.Database.DirectURL, config.Database.URL), err
	}
	c.AddCommand(&cobra.Command{
		Use:   "up",
		Short: "Apply pending migrations",
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, err := url()
			if err != nil {
				return err
			}
			applied, err := postgres.Migrate(cmd.Context(), to)
			for _, m := range applied {
				fmt.Fprintf(p.Stdout, "applied %05d %s\n", m.Version, m.Name)
			}
			if err == nil && len(applied) == 0 {
				fmt.Fprintln(p.Stdout, "nothing to apply")
			}
			return err
		},
	}, &cobra.Command{
		Use:   "status",
		Short: "List all migrations and their status",
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
			return printTable(p.Stdout, rows)
		},
	})
	return c
}

func topicsCommand(p *program) *cobra.Command {
	c := &cobra.Command{Use: "topics", Short: "Create the Kafka topics of the sources, or show consumer lag"}
	var output format
	admin := func() (app.Config, *kadm.Client, error) {
		config, err := p.Load(app.RequiredSources)
		if err != nil {
			return config, nil, err
		}
		opts, err := config.Kafka.Options()
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
		Short: "Create missing topics and report topics whose settings differ",
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, client, err := admin()
			if err != nil {
				return err
			}
			defer client.Close()
			for _, name := range slices.Sorted(maps.Keys(config.Sources)) {
				all, err := topics.Ensure(cmd.Context(), client, name, topics.Replication{
					Factor: int(config.Kafka.ReplicationFactor), MinInsync: int(config.Kafka.MinInsyncReplicas),
				})
				for _, t := range all {
					state := map[bool]string{true: "created", false: "exists"}[t.Created]
					fmt.Fprintf(p.Stdout, "%-8s %s\n", state, t.Name)
					for _, d := range t.Drift {
						fmt.Fprintf(p.Stderr, "%s: %s; the topic was not changed\n", t.Name, d)
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
		Short: "Show the consumer lag of each lane, in records",
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, client, err := admin()
			if err != nil {
				return err
			}
			defer client.Close()
			var all []topics.Lag
			names := slices.Sorted(maps.Keys(config.Sources))
			measured := topics.Measure(cmd.Context(), client, names...)
			for _, name := range names {
				if err := measured[name].LagErr; err != nil {
					return err
				}
				all = append(all, measured[name].Lags...)
			}
			return printAll(p.Stdout, output, all, []string{"SOURCE", "LANE", "LAG", "COMMITTED", "GROUP"}, lagRow)
		},
	}
	output.addFlag(lag)
	c.AddCommand(ensure, lag)
	return c
}

func lagRow(l topics.Lag) [][]string {
	return [][]string{{l.Source, string(l.Lane), strconv.FormatInt(l.Records, 10), strconv.FormatInt(l.Committed, 10), l.Group}}
}

func healthcheckCommand(p *program) *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:   "healthcheck",
		Short: "Check whether a running role is ready (for container health checks)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := p.CheckHealth(cmd.Context(), address)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(p.Stdout, text)
			return err
		},
	}
	c.Flags().StringVar(&address, "addr", "", "check the health endpoint at this address (default from ops.listen)")
	return c
}
