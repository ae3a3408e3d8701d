package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/status"
)

// credentialsCommand returns the command for credentials that renew themselves.
func credentialsCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "credentials",
		Short: "List, renew, authorize and revoke credentials that renew themselves",
		Long: `List, renew, authorize and revoke the credentials that renew themselves, on the database and
Redis of the configuration. CREDENTIAL is SOURCE/NAME; it can be left out if there is only one.
See docs/credentials.md.`,
	}
	c.AddCommand(credentialsList(p), credentialsRenew(p), credentialsAuthorize(p), credentialsRevoke(p), credentialsRotateKeys(p))
	return c
}

// withCredentials makes c a command that manages credentials. The command calls the function `run`
// with the credentials of the configuration, and with the source and the name that its argument
// SOURCE/NAME has. Both are empty if the command has no argument.
func withCredentials(p *program, c *cobra.Command, run func(cmd *cobra.Command, all *app.Credentials, source, name string) error) *cobra.Command {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		source, name := "", ""
		if len(args) > 0 {
			var found bool
			if source, name, found = strings.Cut(args[0], "/"); !found {
				source, name = "", args[0]
			}
		}
		all, closeAll, err := app.OpenCredentials(cmd.Context(), p.Process)
		if err != nil {
			return err
		}
		defer closeAll()
		return run(cmd, all, source, name)
	}
	return c
}

func credentialsList(p *program) *cobra.Command {
	var output format
	c := &cobra.Command{
		Use:   "list",
		Short: "List the credentials that renew themselves, with their states and ends",
	}
	output.addFlag(c)
	return withCredentials(p, c, func(cmd *cobra.Command, all *app.Credentials, _, _ string) error {
		states, err := all.List(cmd.Context())
		if err != nil {
			return err
		}
		return printAll(p.Stdout, output, states, []string{"CREDENTIAL", "GRANT", "STATE", "GENERATION", "ENDS", "KEY", "SINCE", "ERROR"}, func(s status.Credential) [][]string {
			return [][]string{{s.Source + "/" + s.Credential, s.Grant, s.State, strconv.FormatInt(s.Generation, 10), timeOr(s.EndsAt, "-"), s.KeyID, timeOr(s.Since, "-"), s.Error}}
		})
	})
}

func credentialsRenew(p *program) *cobra.Command {
	return withCredentials(p, &cobra.Command{
		Use:   "renew [CREDENTIAL]",
		Short: "Renew a credential now, also a stopped one",
		Long:  `Make the renewal of a credential due now. A worker of the source renews it within seconds.`,
		Args:  cobra.MaximumNArgs(1),
	}, func(cmd *cobra.Command, all *app.Credentials, source, name string) error {
		found, err := all.Renew(cmd.Context(), source, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "the renewal of %s is due; `freshet credentials list` shows its result\n", found)
		return nil
	})
}

func credentialsAuthorize(p *program) *cobra.Command {
	return withCredentials(p, &cobra.Command{
		Use:   "authorize [CREDENTIAL]",
		Short: "Obtain a refresh token: a person agrees in a browser",
		Long: `Obtain a refresh token with the authorization code flow and PKCE. The command prints the page
on which a person agrees, listens on loopback for the answer, and stores the tokens encrypted.
Run it where the browser runs, or forward the port of token.consent.redirectURL.`,
		Args: cobra.MaximumNArgs(1),
	}, func(cmd *cobra.Command, all *app.Credentials, source, name string) error {
		found, err := all.Authorize(cmd.Context(), source, name, func(page string) {
			fmt.Fprintf(p.Stdout, "Open this page and agree:\n\n%s\n\n", page)
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "the refresh token of %s is stored\n", found)
		return nil
	})
}

func credentialsRevoke(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke [CREDENTIAL]",
		Short: "Delete the tokens of a credential and stop it",
		Long: `Delete the tokens of a credential and stop it, and revoke the tokens at the upstream if
token.consent.revokeURL is set. renew or authorize continue the credential.`,
		Args: cobra.MaximumNArgs(1),
	}
	addYesFlag(c)
	return withCredentials(p, c, func(cmd *cobra.Command, all *app.Credentials, source, name string) error {
		if err := p.confirm(cmd, "Revoke the tokens and stop the credential?"); err != nil {
			return err
		}
		found, revoked, err := all.Revoke(cmd.Context(), source, name)
		if err != nil {
			return err
		}
		where := "here; the upstream still accepts them until they expire, because token.consent.revokeURL is not set"
		if revoked {
			where = "here and at the upstream"
		}
		fmt.Fprintf(p.Stdout, "the tokens of %s are deleted %s\n", found, where)
		return nil
	})
}

func credentialsRotateKeys(p *program) *cobra.Command {
	return withCredentials(p, &cobra.Command{
		Use:   "rotate-keys",
		Short: "Encrypt all tokens with the first key of secrets.keyFile",
		Long: `Encrypt all tokens with the first key of secrets.keyFile, while freshet runs. Write the new key
as the first line of the file of every process, run this command, then remove the old key.`,
	}, func(cmd *cobra.Command, all *app.Credentials, _, _ string) error {
		n, key, err := all.RotateKeys(cmd.Context())
		if err != nil {
			return err
		}
		if key == "" {
			fmt.Fprintln(p.Stdout, "there is no token yet")
			return nil
		}
		fmt.Fprintf(p.Stdout, "encrypted %d tokens again; all tokens use the key %s\n", n, key)
		return nil
	})
}
