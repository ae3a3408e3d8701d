package main

import (
	"maps"
	"slices"

	"github.com/freshet/freshet/source"
)

// redacted returns the configuration without its secrets, to be printed.
func (c Config) redacted() Config {
	c.Database.URL = hidden(c.Database.URL, "database", "url")
	c.Database.DirectURL = hidden(c.Database.DirectURL, "database", "directURL")
	c.Access.JWKSURL = hidden(c.Access.JWKSURL, "jwksURL")
	c.Access.AdminTokenFile = hidden(c.Access.AdminTokenFile, "adminTokenFile")
	c.Tracing.Endpoint = hidden(c.Tracing.Endpoint, "endpoint")
	c.Kafka.SASL.PasswordFile = hidden(c.Kafka.SASL.PasswordFile, "passwordFile")
	c.Redis.PasswordFile = hidden(c.Redis.PasswordFile, "passwordFile")
	c.Kafka.Brokers, c.Redis.Addresses = hiddenList(c.Kafka.Brokers), hiddenList(c.Redis.Addresses)
	c.Sources = maps.Clone(c.Sources)
	for name, s := range c.Sources {
		s.Config = redactedSource(s.Config)
		c.Sources[name] = s
	}
	return c
}

func redactedSource(c source.Config) source.Config {
	c.BaseURL = hidden(c.BaseURL, "baseURL")
	c.Auth.Prefix = hidden(c.Auth.Prefix, "prefix")
	c.Auth.SecretEnv, c.Auth.SecretFile = hidden(c.Auth.SecretEnv, "secretEnv"), hidden(c.Auth.SecretFile, "secretFile")
	c.Credentials = slices.Clone(c.Credentials)
	for i := range c.Credentials {
		one := &c.Credentials[i]
		one.SecretEnv, one.SecretFile = hidden(one.SecretEnv, "secretEnv"), hidden(one.SecretFile, "secretFile")
	}
	c.Headers = hiddenMap(c.Headers, "headers")
	c.Facets = maps.Clone(c.Facets)
	for name, f := range c.Facets {
		f.Params = hiddenMap(f.Params, "params")
		f.Documents = maps.Clone(f.Documents)
		for name, d := range f.Documents {
			d.Path, d.Body = hidden(d.Path, "path"), hidden(d.Body, "body")
			d.Headers = hiddenMap(d.Headers, "headers")
			if d.GraphQL != nil {
				q := *d.GraphQL
				q.Query = hidden(q.Query, "query")
				q.Variables, _ = hiddenValue("", q.Variables).(map[string]any)
				d.GraphQL = &q
			}
			f.Documents[name] = d
		}
		c.Facets[name] = f
	}
	return c
}

func hiddenList(all []string) []string {
	out := slices.Clone(all)
	for i := range out {
		out[i] = hidden(out[i])
	}
	return out
}

func hiddenMap(all map[string]string, setting string) map[string]string {
	out := maps.Clone(all)
	for name, value := range out {
		out[name] = hidden(value, setting, name)
	}
	return out
}

// hiddenValue is hidden of a GraphQL variable.
func hiddenValue(name string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := maps.Clone(v)
		for name, value := range out {
			out[name] = hiddenValue(name, value)
		}
		return out
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = hiddenValue(name, out[i])
		}
		return out
	case string:
		return hidden(v, "variables", name)
	}
	return v
}
