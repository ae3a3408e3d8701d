package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/app"
)

func keysCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "keys",
		Short: "Create, list and revoke API keys",
		Long: `Create, list and revoke API keys, through a query service. To create the first key, call a
query service that listens on loopback, or put the token of access.adminTokenFile into
FRESHET_TOKEN. Every query service applies a change within five seconds.`,
	}
	c.AddCommand(keysCreate(p), keysList(p), keysRevoke(p))
	return c
}

func keysCreate(p *program) *cobra.Command {
	var order access.NewKey
	var scopes []string
	c := &cobra.Command{
		Use:   "create",
		Short: "Create an API key and print it once",
		Long: `Create an API key and print it. It can't be shown again: freshet stores only its hash. The
scope read allows reads, refresh allows explicit refreshes, and admin allows everything. Data
fetched with a credential of limited visibility needs the scope see:VISIBILITY, too.`,
		Example: `  freshet keys create --name a-dashboard --scopes read --expires 90d
  freshet keys create --name a-partner --scopes read,refresh,see:partner
  FRESHET_TOKEN=$(cat admin-token) freshet keys create --name on-call --scopes admin`,
	}
	c.Flags().StringVar(&order.Name, "name", "", "name the key's owner, for lists and the audit")
	c.Flags().StringSliceVar(&scopes, "scopes", nil, "grant these scopes: read, refresh, inspect, delegate, see:VISIBILITY, admin")
	c.Flags().StringVar(&order.ExpiresIn, "expires", "", "let the key expire after this time, as in 90d or 12h (default: valid until revoked)")
	c.PreRunE = func(*cobra.Command, []string) error {
		if order.Name == "" || len(scopes) == 0 {
			return app.UsageErrorf("--name and --scopes are required, as in --name a-dashboard --scopes read,refresh")
		}
		for _, s := range scopes {
			order.Scopes = append(order.Scopes, access.Scope(strings.TrimSpace(s)))
		}
		return nil
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var made access.CreatedKey
		if err := api.Call(cmd.Context(), http.MethodPost, "/keys", order, &made); err != nil {
			return err
		}
		fmt.Fprintf(p.Stderr, "created key %s of %q with scopes %s; it is not shown again\n", made.Key.ID, made.Key.Name, formatScopes(made.Key))
		if !made.Required {
			fmt.Fprintln(p.Stderr, "note: this query service does not require keys yet. With access.require: auto it requires them after its next start, because a key exists now. The admin API then needs a key with the scope admin, or the token of access.adminTokenFile.")
		}
		_, err := fmt.Fprintln(p.Stdout, made.Secret)
		return err
	})
}

func keysList(p *program) *cobra.Command {
	var output format
	c := &cobra.Command{
		Use:   "list",
		Short: "List all API keys, including revoked ones",
	}
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var all struct {
			Keys []access.Key `json:"keys"`
		}
		if err := api.Call(cmd.Context(), http.MethodGet, "/keys", nil, &all); err != nil {
			return err
		}
		return printAll(p.Stdout, output, all.Keys, []string{"ID", "NAME", "SCOPES", "STATE", "CREATED", "BY"}, keyRow)
	})
}

func keyRow(k access.Key) [][]string {
	state := "active"
	switch {
	case k.RevokedAt != nil:
		state = "revoked " + k.RevokedAt.Format(time.RFC3339) + " by " + *k.RevokedBy
	case k.ExpiresAt != nil && k.ExpiresAt.Before(time.Now()):
		state = "expired " + k.ExpiresAt.Format(time.RFC3339)
	case k.ExpiresAt != nil:
		state = "active until " + k.ExpiresAt.Format(time.RFC3339)
	}
	return [][]string{{k.ID, k.Name, formatScopes(k), state, k.CreatedAt.Format(time.RFC3339), k.CreatedBy}}
}

func formatScopes(k access.Key) string {
	var words []string
	for _, s := range k.Scopes {
		words = append(words, string(s))
	}
	return strings.Join(words, ",")
}

func keysRevoke(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke an API key",
		Args:  cobra.ExactArgs(1),
	}
	addYesFlag(c)
	c.PreRunE = func(_ *cobra.Command, args []string) error {
		if strings.HasPrefix(args[0], "fsk_") { // do not print the argument: it may be the whole key
			return app.UsageErrorf("pass the key's ID, the part between fsk_ and the next _; `freshet keys list` shows it")
		}
		return nil
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, args []string) error {
		id := args[0]
		if err := p.confirm(cmd, "Revoke the key "+id+"?"); err != nil {
			return err
		}
		var key access.Key
		if err := api.Call(cmd.Context(), http.MethodDelete, "/keys/"+url.PathEscape(id), nil, &key); err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "key %s of %q is revoked\n", key.ID, key.Name)
		return nil
	})
}
