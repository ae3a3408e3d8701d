package app

import (
	"maps"
	"slices"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/token"
)

// Redacted returns a copy of the configuration with all secrets redacted.
func (c Config) Redacted() Config {
	c.Database.URL = redactValue(c.Database.URL, "database", "url")
	c.Database.DirectURL = redactValue(c.Database.DirectURL, "database", "directURL")
	c.Access.JWKSURL = redactValue(c.Access.JWKSURL, "jwksURL")
	c.Access.AdminTokenFile = redactValue(c.Access.AdminTokenFile, "adminTokenFile")
	c.Access.CronSecretFile = redactValue(c.Access.CronSecretFile, "cronSecretFile")
	c.Tracing.Endpoint = redactValue(c.Tracing.Endpoint, "endpoint")
	c.Kafka.SASL.PasswordFile = redactValue(c.Kafka.SASL.PasswordFile, "passwordFile")
	c.Redis.PasswordFile = redactValue(c.Redis.PasswordFile, "passwordFile")
	c.Kafka.Brokers, c.Redis.Addresses = redactList(c.Kafka.Brokers), redactList(c.Redis.Addresses)
	c.Sources = maps.Clone(c.Sources)
	for name, s := range c.Sources {
		s.Config, s.Webhooks = redactSource(s.Config), redactWebhooks(s.Webhooks)
		c.Sources[name] = s
	}
	return c
}

func redactSource(c source.Config) source.Config {
	c.BaseURL = redactValue(c.BaseURL, "baseURL")
	c.Auth.Prefix = redactValue(c.Auth.Prefix, "prefix")
	c.Auth.SecretEnv, c.Auth.SecretFile = redactValue(c.Auth.SecretEnv, "secretEnv"), redactValue(c.Auth.SecretFile, "secretFile")
	c.Credentials = slices.Clone(c.Credentials)
	for i := range c.Credentials {
		one := &c.Credentials[i]
		one.Token = redactToken(one.Token)
		one.SecretEnv, one.SecretFile = redactValue(one.SecretEnv, "secretEnv"), redactValue(one.SecretFile, "secretFile")
	}
	c.Headers = redactMap(c.Headers, "headers")
	c.Facets = maps.Clone(c.Facets)
	for name, f := range c.Facets {
		f.Params = redactParams(f.Params)
		f.Documents = maps.Clone(f.Documents)
		for name, d := range f.Documents {
			d.BaseURL = redactValue(d.BaseURL, "baseURL")
			d.Path, d.Body = redactValue(d.Path, "path"), redactValue(d.Body, "body")
			d.Headers = redactMap(d.Headers, "headers")
			if d.GraphQL != nil {
				q := *d.GraphQL
				q.Query = redactValue(q.Query, "query")
				q.Variables, _ = redactVariable("", q.Variables).(map[string]any)
				d.GraphQL = &q
			}
			f.Documents[name] = d
		}
		c.Facets[name] = f
	}
	return c
}

func redactParams(all map[string]source.Param) map[string]source.Param {
	out := maps.Clone(all)
	for name, p := range all {
		p.Text = redactMap(map[string]string{name: p.Text}, "params")[name]
		out[name] = p
	}
	return out
}

// redactToken redacts the texts that can hold a secret by mistake.
func redactToken(t *token.Config) *token.Config {
	if t == nil {
		return nil
	}
	c := *t
	c.TokenURL, c.ClientID = redactValue(c.TokenURL, "baseURL"), redactValue(c.ClientID, "clientId")
	c.ClientIDEnv, c.ClientSecretEnv, c.RefreshTokenEnv = redactValue(c.ClientIDEnv, "secretEnv"), redactValue(c.ClientSecretEnv, "secretEnv"), redactValue(c.RefreshTokenEnv, "secretEnv")
	c.ClientSecretFile, c.RefreshTokenFile = redactValue(c.ClientSecretFile, "secretFile"), redactValue(c.RefreshTokenFile, "secretFile")
	c.Params = redactMap(c.Params, "params")
	c.Consent.AuthorizeURL, c.Consent.RevokeURL = redactValue(c.Consent.AuthorizeURL, "baseURL"), redactValue(c.Consent.RevokeURL, "baseURL")
	c.Consent.Params = redactMap(c.Consent.Params, "params")
	if c.JWT != nil {
		j := *c.JWT
		j.KeyFile, j.KeyEnv = redactValue(j.KeyFile, "secretFile"), redactValue(j.KeyEnv, "secretEnv")
		c.JWT = &j
	}
	if c.Request != nil {
		r := *c.Request
		r.URL, r.Body = redactValue(r.URL, "baseURL"), redactValue(r.Body, "body")
		r.Headers = redactMap(r.Headers, "headers")
		r.Secrets = maps.Clone(r.Secrets)
		for name, s := range r.Secrets {
			r.Secrets[name] = token.Secret{Env: redactValue(s.Env, "secretEnv"), File: redactValue(s.File, "secretFile")}
		}
		c.Request = &r
	}
	return &c
}

func redactList(all []string) []string {
	out := slices.Clone(all)
	for i := range out {
		out[i] = redactValue(out[i])
	}
	return out
}

func redactMap(all map[string]string, setting string) map[string]string {
	out := maps.Clone(all)
	for name, value := range out {
		out[name] = redactValue(value, setting, name)
	}
	return out
}

// redactVariable redacts the secrets in a GraphQL variable.
func redactVariable(name string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := maps.Clone(v)
		for name, value := range out {
			out[name] = redactVariable(name, value)
		}
		return out
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = redactVariable(name, out[i])
		}
		return out
	case string:
		return redactValue(v, "variables", name)
	}
	return v
}
