package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/access"
)

func (p *program) keys() *cobra.Command {
	c := &cobra.Command{
		Use:   "keys",
		Short: "Make, list and revoke the API keys by which callers are known",
		Long: `Make, list and revoke the API keys by which callers are known, through a query service.
The first is made while it listens on loopback, or with the token of access.adminTokenFile
in FRESHET_TOKEN. What is changed holds within five seconds in every query service.`,
	}
	c.AddCommand(p.keysCreate(), p.keysList(), p.keysRevoke())
	return c
}

func (p *program) keysCreate() *cobra.Command {
	var addr string
	var order access.NewKey
	var scopes []string
	c := &cobra.Command{
		Use:   "create",
		Short: "Make an API key and print it, once",
		Long: `Make an API key and print it. It is shown now and never again: only its hash is kept. The
scope read is for reads, refresh for asking for refreshes, and admin for everything. What a
source fetches with a credential of limited visibility is there for those alone who have the
scope see:VISIBILITY besides.`,
		Example: `  freshet keys create --name a-dashboard --scopes read --expires 90d
  freshet keys create --name a-partner --scopes read,refresh,see:partner
  FRESHET_TOKEN=$(cat admin-token) freshet keys create --name on-call --scopes admin`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if order.Name == "" || len(scopes) == 0 {
				return usageError{errors.New("say whose key it is and what for, as in --name a-dashboard --scopes read,refresh")}
			}
			for _, s := range scopes {
				order.Scopes = append(order.Scopes, access.Scope(strings.TrimSpace(s)))
			}
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			var made access.CreatedKey
			if err := api.call(cmd.Context(), http.MethodPost, "/keys", order, &made); err != nil {
				return err
			}
			fmt.Fprintf(p.stderr, "key %s of %q with %s; it is not shown again\n", made.Key.ID, made.Key.Name, formatScopes(made.Key))
			if !made.Required {
				fmt.Fprintln(p.stderr, "note: this query service asks nobody for keys at present; with access.require: auto it does from its next start, now that there is one, and then only a key with the scope admin, or the token of access.adminTokenFile, may administer")
			}
			_, err = fmt.Fprintln(p.stdout, made.Secret)
			return err
		},
	}
	c.Flags().StringVar(&order.Name, "name", "", "whose key it is, for lists and audits")
	c.Flags().StringSliceVar(&scopes, "scopes", nil, "what it is for: read, refresh, inspect, delegate, see:VISIBILITY, admin")
	c.Flags().StringVar(&order.ExpiresIn, "expires", "", "how long it holds, as in 90d or 12h (default: until it is revoked)")
	addAddrFlag(c, &addr)
	return c
}

func (p *program) keysList() *cobra.Command {
	var addr string
	var output format
	c := &cobra.Command{
		Use:   "list",
		Short: "List all API keys, also those that were revoked",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			var all struct {
				Keys []access.Key `json:"keys"`
			}
			if err := api.call(cmd.Context(), http.MethodGet, "/keys", nil, &all); err != nil {
				return err
			}
			return printAll(p.stdout, output, all.Keys, []string{"ID", "NAME", "SCOPES", "STATE", "CREATED", "BY"}, keyRow)
		},
	}
	output.addFlag(c)
	addAddrFlag(c, &addr)
	return c
}

func keyRow(k access.Key) [][]string {
	state := "holds"
	switch {
	case k.RevokedAt != nil:
		state = "revoked " + k.RevokedAt.Format(time.RFC3339) + " by " + *k.RevokedBy
	case k.ExpiresAt != nil && k.ExpiresAt.Before(time.Now()):
		state = "expired " + k.ExpiresAt.Format(time.RFC3339)
	case k.ExpiresAt != nil:
		state = "until " + k.ExpiresAt.Format(time.RFC3339)
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

func (p *program) keysRevoke() *cobra.Command {
	var addr string
	var yes bool
	c := &cobra.Command{
		Use:   "revoke ID",
		Short: "Have an API key hold no more",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if strings.HasPrefix(id, "fsk_") { // and not echoed: it may be the whole key
				return usageError{errors.New("name the key by its id, the part between fsk_ and the next _; `freshet keys list` has it")}
			}
			api, err := p.newAdminClient(addr)
			if err != nil {
				return err
			}
			if !yes {
				in := cmd.InOrStdin()
				if err := confirm(cmd.Context(), in, isTerminal(in), p.stderr, "Revoke the key "+id+"?"); err != nil {
					return err
				}
			}
			var key access.Key
			if err := api.call(cmd.Context(), http.MethodDelete, "/keys/"+url.PathEscape(id), nil, &key); err != nil {
				return err
			}
			fmt.Fprintf(p.stdout, "key %s of %q is revoked\n", key.ID, key.Name)
			return nil
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addAddrFlag(c, &addr)
	return c
}
