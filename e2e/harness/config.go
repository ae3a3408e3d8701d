package harness

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/freshet/freshet/source/nexon"
)

// prefetchedFacets matches the lines of the reference source's configuration that list its
// prefetched facets.
var prefetchedFacets = regexp.MustCompile(`(?m)^  facets:\n    character: .*\n`)

// Preset returns the configuration of the reference source for the upstream at a URL. facets
// maps each facet to the upstream document that it reads. The key of each facet is the ocid, so a
// fetch is one call. Only the facet "character" is prefetched.
func Preset(upstream string, facets map[string]string) string {
	text, all, _ := strings.Cut(strings.Replace(string(nexon.Config), "https://open.api.nexon.com", upstream, 1), "\nfacets:\n")
	text += "\nfacets:\n"
	_, facet, _ := strings.Cut(all, "  character-by-ocid: # for programs that know the ocid\n")
	if _, there := facets["character"]; !there {
		text = prefetchedFacets.ReplaceAllString(text, "")
	}
	var made strings.Builder
	made.WriteString(text)
	for name, document := range facets {
		fmt.Fprintf(&made, "  %s:\n%s", name, strings.ReplaceAll(facet, "item-equipment", document))
	}
	return made.String()
}

// Configure writes the configuration file of a process and returns the process's environment
// variables. name is the name of the file; broker is the address at which the process connects to
// Kafka. freshFor replaces the source's freshFor unless it is empty.
func (s *Site) Configure(name, broker, freshFor string) (env []string, err error) {
	sources, err := s.sources(freshFor)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	text.WriteString(s.Settings)
	if s.Token != "" {
		file := filepath.Join(s.Dir, "token")
		if err := os.WriteFile(file, []byte(s.Token), 0o600); err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "access: {adminTokenFile: %q}\n", file)
	}
	fmt.Fprintf(&text, "kafka: {brokers: [%q]}\nredis: %s\nsources:\n", broker, s.redisConfig())
	for _, name := range s.names() {
		fmt.Fprintf(&text, "  %s:\n    %s\n", name, strings.ReplaceAll(sources[name], "\n", "\n    "))
	}
	file := filepath.Join(s.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	database := s.Database
	if s.DatabaseProxy != nil {
		if database, err = withHost(database, s.DatabaseProxy.Address()); err != nil {
			return nil, err
		}
	}
	return append([]string{"NEXON_API_KEY=a-key", "FRESHET_DATABASE_URL=" + database, "FRESHET_CONFIG=" + file}, s.Env...), nil
}

// sources returns the configuration of each source, by its name.
func (s *Site) sources(freshFor string) (map[string]string, error) {
	if len(s.Sources) > 0 {
		return s.Sources, nil
	}
	text := Preset(s.Upstream, s.Facets)
	for i := 0; i < len(s.Edits); i += 2 {
		if !strings.Contains(text, s.Edits[i]) {
			return nil, fmt.Errorf("the configuration of the reference source has no %q to replace", s.Edits[i])
		}
	}
	text = strings.NewReplacer(s.Edits...).Replace(text)
	if freshFor != "" {
		text = strings.ReplaceAll(text, "freshFor: 1h", "freshFor: "+freshFor)
	}
	return map[string]string{s.Source: text}, nil
}

func (s *Site) redisConfig() string {
	if len(s.RedisCluster) > 0 {
		return fmt.Sprintf(`{mode: cluster, addresses: ["%s"]}`, strings.Join(s.RedisCluster, `", "`))
	}
	address := s.Redis.Address
	if s.RedisProxy != nil {
		address = s.RedisProxy.Address()
	}
	return fmt.Sprintf("{mode: single, addresses: [%q]}", address)
}

// UseProxies puts a proxy before Redis and another proxy before the database. Only processes that are
// configured after the call use these proxies. Query services always connect to Kafka through a proxy.
func (s *Site) UseProxies(ctx context.Context) (err error) {
	if s.RedisProxy, err = NewProxy(ctx, s.Redis.Address, nil); err != nil {
		return err
	}
	s.OnClose(s.RedisProxy.Close)
	u, err := url.Parse(s.Database)
	if err != nil {
		return err
	}
	if s.DatabaseProxy, err = NewProxy(ctx, u.Host, nil); err != nil {
		return err
	}
	s.OnClose(s.DatabaseProxy.Close)
	return nil
}

// withHost returns a database's URL with another host and port.
func withHost(database, address string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	u.Host = address
	return u.String(), nil
}
