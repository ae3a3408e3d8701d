package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/source/guess"
)

// initOptions are the flags of `freshet init`.
type initOptions struct {
	guess.Options
	output string
	force  bool
	limits []string
}

func initCommand(p *program) *cobra.Command {
	o := initOptions{}
	c := &cobra.Command{
		Use:   "init [URL...]",
		Short: "Write a configuration for an API, from example URLs",
		Long: fmt.Sprintf(`Call each URL, and write a configuration from the response: the id in the path or the query, the
limit in the headers, ETag, paging, and the members that change in every response. Use URLs with
existing ids. URLs of one host become facets of one source. Without a URL, write a template.

The command makes at most %d calls, and each can follow one redirect within its
host. A credential in a URL (user:password@ or a parameter such as api_key) is sent, but is not
written into the file. Exit code 1: no response arrived, and no file was written.`, guess.MaxCalls),
		Example: `  freshet init https://api.example.com/products/42
  SHOP_KEY=… freshet init https://api.example.com/products/42 --auth-header X-Api-Key --auth-env SHOP_KEY
  freshet init https://api.example.com/products/42 https://api.example.com/users/7 --limit 10/s
  freshet init --output -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.URLs = args
			return runInit(p, cmd, o)
		},
	}
	c.Flags().DurationVar(&o.Pause, "pause", time.Second, "time between two calls of one host")
	c.Flags().StringVar(&o.output, "output", "freshet.yaml", "file to write, or - for stdout")
	c.Flags().BoolVar(&o.force, "force", false, "replace an existing file")
	c.Flags().StringVar(&o.AuthHeader, "auth-header", "", "header with the credential: a name, or a name and a prefix as in \"Authorization: Token\"")
	c.Flags().StringVar(&o.AuthEnv, "auth-env", "", "environment variable with the credential")
	c.Flags().StringSliceVar(&o.limits, "limit", nil, "documented limit of the API, as in 10/s or 10/s,20000/d")
	return c
}

// variableName matches the name of an environment variable.
var variableName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// complete checks the flags and fills the options of package guess.
func (o *initOptions) complete(env []string) error {
	switch {
	case (o.AuthHeader == "") != (o.AuthEnv == ""):
		return app.UsageErrorf("write both --auth-header NAME and --auth-env VARIABLE, as in --auth-header X-Api-Key --auth-env SHOP_KEY")
	case o.AuthEnv != "" && !variableName.MatchString(o.AuthEnv):
		return app.UsageErrorf("--auth-env must be the name of an environment variable in capital letters, as in SHOP_KEY; its value is the credential") // the value is not printed: it may be the credential
	case o.Pause < 0 || o.Pause > time.Hour:
		return app.UsageErrorf("--pause is %v; it must be from 0s to 1h", o.Pause)
	case o.output == "":
		return app.UsageErrorf("--output is empty; write the name of a file, or - for stdout")
	}
	if o.AuthEnv != "" {
		if o.Secret = strings.TrimSpace(app.Lookup(env, o.AuthEnv)); o.Secret == "" && len(o.URLs) > 0 {
			return fmt.Errorf("%s is not set; set it to the upstream's credential: export %s=…", o.AuthEnv, o.AuthEnv)
		}
	}
	for _, text := range o.limits {
		l, err := guess.ParseLimit(text)
		if err != nil {
			return app.UsageErrorf("--limit: %w", err)
		}
		o.Limits = append(o.Limits, l)
	}
	o.File = guess.ShellQuote(o.output)
	if o.output == "-" {
		o.File = "freshet.yaml"
	}
	return nil
}

func runInit(p *program, cmd *cobra.Command, o initOptions) error {
	if err := o.complete(p.Env); err != nil {
		return err
	}
	p.AddSecret(o.Secret)
	if _, err := os.Lstat(o.output); o.output != "-" && err == nil && !o.force {
		return fmt.Errorf("%s exists; replace it with --force, or write another file with --output FILE", o.output)
	}
	result, err := guess.Run(cmd.Context(), o.Options)
	if errors.As(err, new(guess.InputError)) {
		return app.UsageErrorf("%w", err)
	}
	if err != nil {
		return p.MaskError(err)
	}
	schema, _, _ := strings.Cut(app.SchemaComment, "\n")
	result.File = append([]byte(schema+"\n"), result.File...)
	if o.output == "-" {
		_, err = p.Stdout.Write(result.File)
	} else {
		err = os.WriteFile(o.output, result.File, 0o644) //nolint:gosec // it holds no credential, and the user of a container must be able to read it
	}
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	explainInit(p, result, o)
	return nil
}

// explainInit prints the calls, the guesses and the next commands on stderr.
func explainInit(p *program, result guess.Result, o initOptions) {
	for _, n := range result.Notes {
		fmt.Fprintf(p.Stderr, "%-7s %s\n", n.Kind, n.Text)
	}
	if o.output != "-" {
		fmt.Fprintf(p.Stderr, "wrote   %s, %d lines\n", o.output, strings.Count(string(result.File), "\n"))
	}
	var next []string
	if result.Env != "" {
		value := "…"
		if result.Basic {
			value = "$(printf %s 'USER:PASSWORD' | base64)"
		}
		next = append(next, "export "+result.Env+"="+value)
	}
	next = append(next, "freshet config check --config "+o.File)
	if len(result.Entities) > 0 {
		next = append(next, "freshet try "+guess.ShellQuote(result.Entities[0])+" --config "+o.File)
	}
	next = append(next, "freshet dev --config "+o.File)
	for i, command := range next {
		name := "next"
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(p.Stderr, "%-7s %s\n", name, command)
	}
}
