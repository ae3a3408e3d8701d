package renewal

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/source"
)

// benchPermits grants each call at once. With a Renewer, calls wait for a token as in the consumer.
type benchPermits struct{ tokens *Renewer }

func (p benchPermits) Acquire(ctx context.Context, c source.Call) (source.Permit, error) {
	if p.tokens != nil {
		if _, err := p.tokens.Await(ctx, c.Credentials); err != nil {
			return nil, err
		}
	}
	return benchPermit{}, nil
}

type benchPermit struct{}

func (benchPermit) Spend(context.Context) error { return nil }
func (benchPermit) Credential() string          { return "app" }
func (benchPermit) Release()                    {}
func (benchPermit) Written()                    {}
func (benchPermit) Answered()                   {}
func (benchPermit) Finished(source.CallResult)  {}

// BenchmarkFetch_TokenRatio fetches alternately with a credential that renews itself and with a
// credential whose token is fixed. The metric "ratio" is the median time without renewal divided by
// the median time with it.
func BenchmarkFetch_TokenRatio(b *testing.B) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"a":1}`)) }))
	defer api.Close()
	f := newFleet(b, oauth.Config{Lifetime: time.Hour})
	renewer := f.start("a")
	defer renewer.stop()
	open := func(c source.Credential) (*source.Source, *source.Plan) {
		config := source.DefaultConfig()
		config.BaseURL, config.Auth, config.Credentials = api.URL, source.Auth{Header: "Authorization", Prefix: "Bearer "}, []source.Credential{c}
		facet := source.DefaultFacet()
		facet.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
		config.Facets = map[string]source.Facet{"f": facet}
		s, err := source.New("a", config, nil, 1)
		if err != nil {
			b.Fatal(err)
		}
		p, err := s.Plan(source.Request{Facet: "f", Key: "x"})
		if err != nil {
			b.Fatal(err)
		}
		return s, p
	}
	fixed, fixedPlan := open(source.Credential{Name: "app", SecretEnv: "S"})
	renewing, renewingPlan := open(source.Credential{Name: "app", Token: &f.config})
	if err := fixed.SetCredential("app", "a-long-credential"); err != nil {
		b.Fatal(err)
	}
	if err := renewing.SetToken("app", "a-long-credential", 1, time.Now().Add(time.Hour)); err != nil {
		b.Fatal(err)
	}
	var with, without []time.Duration
	fetch := func(s *source.Source, p *source.Plan, permits source.Permits, took *[]time.Duration) {
		began := time.Now()
		answers, err := s.Fetch(b.Context(), p, permits)
		if err != nil {
			b.Fatal(err)
		}
		s.Read(answers, time.Now()).Content.Release()
		*took = append(*took, time.Since(began))
	}
	for n := 0; b.Loop(); n++ {
		if n%2 == 0 {
			fetch(fixed, fixedPlan, benchPermits{}, &without)
		}
		fetch(renewing, renewingPlan, benchPermits{renewer.Renewer}, &with)
		if n%2 == 1 {
			fetch(fixed, fixedPlan, benchPermits{}, &without)
		}
	}
	slices.Sort(with)
	slices.Sort(without)
	b.ReportMetric(float64(without[len(without)/2])/float64(with[len(with)/2]), "ratio")
}
