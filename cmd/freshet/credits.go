package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/credits"
)

func creditsCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "credits",
		Short: "Show, grant, void and verify credits of clients",
		Long: `Show, grant, void and verify the credits that clients spend for refreshes, through a query
service. Refreshes cost credits if the configuration has credits.plans.`,
	}
	c.AddCommand(creditsShow(p), creditsGrant(p), creditsVoid(p), creditsVerify(p))
	return c
}

func creditsShow(p *program) *cobra.Command {
	var output format
	c := &cobra.Command{
		Use:     "show [CLIENT]",
		Short:   "List the accounts, or show the grants and open holds of one client",
		Args:    cobra.MaximumNArgs(1),
		Example: "  freshet credits show\n  freshet credits show \"key:0199c8a06f3e a-partner\"",
	}
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, args []string) error {
		if len(args) == 0 {
			return listCredits(p, cmd, api, output)
		}
		var d credits.Details
		if err := api.Call(cmd.Context(), http.MethodGet, "/credits/account?client="+url.QueryEscape(args[0]), nil, &d); err != nil {
			return err
		}
		if output != "table" {
			return printAll(p.Stdout, output, []credits.Details{d}, nil, nil)
		}
		fmt.Fprintf(p.Stdout, "%s: balance %d, held %d, used today %d, plan %s, next credits %s\n", d.Client, d.Balance, d.Held, d.UsedToday, d.Plan, renewal(d.Account))
		rows := [][]string{{"GRANT", "REMAINING", "OF", "EXPIRES", "BY", "NOTE"}}
		for _, g := range d.Grants {
			rows = append(rows, []string{g.ID, strconv.FormatInt(g.Remaining, 10), strconv.FormatInt(g.Amount, 10), timeOr(g.ExpiresAt, "never"), g.CreatedBy, g.Note})
		}
		if err := printTable(p.Stdout, rows); err != nil {
			return err
		}
		rows = [][]string{{"HOLD", "ENTITY", "AMOUNT", "SINCE", "EXPIRES"}}
		for _, h := range d.Holds {
			rows = append(rows, []string{h.ID, h.Entity.String(), strconv.FormatInt(h.Amount, 10), h.CreatedAt.Format(time.RFC3339), h.ExpiresAt.Format(time.RFC3339)})
		}
		return printTable(p.Stdout, rows)
	})
}

func listCredits(p *program, cmd *cobra.Command, api *adminClient, output format) error {
	var all []credits.Account
	for path := "/credits?limit=1000"; path != ""; {
		var page credits.Page
		if err := api.Call(cmd.Context(), http.MethodGet, path, nil, &page); err != nil {
			return err
		}
		all, path = append(all, page.Accounts...), ""
		if page.Next != nil {
			path = "/credits?limit=1000&after=" + url.QueryEscape(*page.Next)
		}
	}
	return printAll(p.Stdout, output, all, []string{"CLIENT", "PLAN", "BALANCE", "HELD", "USED TODAY", "NEXT CREDITS"}, func(a credits.Account) [][]string {
		return [][]string{{a.Client, a.Plan, strconv.FormatInt(a.Balance, 10), strconv.FormatInt(a.Held, 10), strconv.FormatInt(a.UsedToday, 10), renewal(a)}}
	})
}

func renewal(a credits.Account) string { return timeOr(a.RenewsAt, "with the next refresh") }

// timeOr formats a time. If t is nil, it returns the text `none`.
func timeOr(t *time.Time, none string) string {
	if t == nil {
		return none
	}
	return t.Format(time.RFC3339)
}

func creditsGrant(p *program) *cobra.Command {
	var g credits.NewGrant
	c := &cobra.Command{
		Use:     "grant CLIENT AMOUNT",
		Short:   "Grant credits to a client, in addition to those of its plan",
		Args:    cobra.ExactArgs(2),
		Example: "  freshet credits grant \"key:0199c8a06f3e a-partner\" 100 --expires 30d --note \"outage of Monday\"",
	}
	c.Flags().StringVar(&g.ExpiresIn, "expires", "", "let the credits expire after this time, as in 30d or 12h (default: they do not expire)")
	c.Flags().StringVar(&g.Note, "note", "", "record this reason in the audit")
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		g.Client = args[0]
		if g.Amount, err = strconv.ParseInt(args[1], 10, 64); err != nil || g.Amount < 1 {
			return app.UsageErrorf("AMOUNT is %q; it must be a whole number of at least 1", args[1])
		}
		return nil
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var made credits.Grant
		if err := api.Call(cmd.Context(), http.MethodPost, "/credits/grants", g, &made); err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "granted %d credits to %s; the grant %s expires: %s\n", made.Amount, made.Client, made.ID, timeOr(made.ExpiresAt, "never"))
		return nil
	})
}

func creditsVoid(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "void GRANT",
		Short: "Take the remaining credits of a grant away",
		Args:  cobra.ExactArgs(1),
	}
	addYesFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, args []string) error {
		if err := p.confirm(cmd, "Void the grant "+args[0]+"?"); err != nil {
			return err
		}
		var g credits.Grant
		if err := api.Call(cmd.Context(), http.MethodDelete, "/credits/grants/"+url.PathEscape(args[0]), nil, &g); err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "grant %s is voided; %s had %d of its %d credits left\n", g.ID, g.Client, g.Remaining, g.Amount)
		return nil
	})
}

func creditsVerify(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Compare each account with its ledger, its grants and its open holds",
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var v credits.Verification
		if err := api.Call(cmd.Context(), http.MethodGet, "/credits/verify", nil, &v); err != nil {
			return err
		}
		for _, m := range v.Mismatches {
			fmt.Fprintf(p.Stdout, "%s: %s\n", m.Client, m.Detail)
		}
		if len(v.Mismatches) > 0 {
			return errors.New("the ledger does not match: report the lines above, and correct balances with `freshet credits grant`")
		}
		fmt.Fprintf(p.Stdout, "%d accounts match their ledger\n", v.Accounts)
		return nil
	})
}
