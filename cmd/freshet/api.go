package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/client"
)

func addAddrFlag(c *cobra.Command, addr *string) {
	c.Flags().StringVar(addr, "addr", "", "call the query service at this address (default FRESHET_ADDR, or query.listen); FRESHET_TOKEN holds the API key or token")
}

// runWithAPI makes c a command that calls a query service. It adds the flag --addr to the command,
// and passes a client for that address to the function `run`.
func (p *program) runWithAPI(c *cobra.Command, run func(cmd *cobra.Command, api *adminClient, args []string) error) *cobra.Command {
	var addr string
	addAddrFlag(c, &addr)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := p.newAdminClient(addr)
		if err != nil {
			return err
		}
		return run(cmd, api, args)
	}
	return c
}

// newAdminClient returns a client for the query service at addr. If addr is empty, it uses the
// address in FRESHET_ADDR. If that variable is not set either, it reads the configuration and uses
// query.listen. It does not read the configuration in any other case: an emergency stop with an
// address must work even if the configuration is invalid.
func (p *program) newAdminClient(addr string) (*adminClient, error) {
	if addr == "" {
		addr = app.Lookup(p.Env, "FRESHET_ADDR")
	}
	if addr == "" {
		config, err := p.Load(app.OptionalSources)
		if err != nil {
			return nil, err
		}
		addr = config.Query.TLS.DialURL(config.Query.Listen)
	}
	base, err := client.BaseURL(addr)
	if err != nil {
		return nil, app.UsageErrorf("--addr is %q; %w", addr, err)
	}
	token := strings.TrimSpace(app.Lookup(p.Env, "FRESHET_TOKEN"))
	if host, plain := isRemotePlainHTTP(base); plain && token != "" {
		fmt.Fprintf(p.Stderr, "warning: FRESHET_TOKEN is sent to %s unencrypted; use https\n", host)
	}
	secured, err := p.ClientTLS()
	if err != nil {
		return nil, err
	}
	return newClient(base, token, secured)
}

// isRemotePlainHTTP returns the host in the URL `base`, and whether requests to that host leave this
// machine unencrypted.
func isRemotePlainHTTP(base string) (host string, plain bool) {
	u, err := url.Parse(base)
	if err != nil {
		return "", false // impossible: client.BaseURL has checked the URL
	}
	return u.Host, u.Scheme == "http" && !access.Loopback(u.Host)
}

// resolveSource returns source, or the name of the only configured source if source is empty. With
// several configured sources and no name it returns an app.UsageError. The parameter "instead" is the
// end of the error's text, which may name another flag, such as ", or use --all".
func resolveSource(ctx context.Context, api *adminClient, source, instead string) (string, error) {
	if source != "" {
		return source, nil
	}
	all, err := api.Sources(ctx)
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", app.UsageErrorf("there are several sources; choose one of %s with --source%s", strings.Join(all, ", "), instead)
	}
	return all[0], nil
}
