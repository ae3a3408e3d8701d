package harness

import "context"

// Ready returns the pattern of the line that a process with this role prints when it is ready. For
// a query service the pattern captures the listen address.
func Ready(role string) string {
	if role == "query" {
		return `query service started.* listen=([0-9.:]+)`
	}
	return role + " started"
}

// Query starts a query service that connects to Kafka through the site's proxy, and returns its
// URL. freshFor replaces the source's freshFor unless it is empty.
func (s *Site) Query(ctx context.Context, name, freshFor string) (api string, err error) {
	p, err := s.StartQuery(ctx, name, freshFor)
	if err != nil {
		return "", err
	}
	return p.URL(), nil
}

// StartQuery starts a query service that connects to Kafka through the site's proxy, and returns its
// process. freshFor replaces the source's freshFor unless it is empty.
func (s *Site) StartQuery(ctx context.Context, name, freshFor string) (*Process, error) {
	env, err := s.Configure(name, s.Kafka.Address(), freshFor)
	if err != nil {
		return nil, err
	}
	return s.Start(ctx, name, Ready("query"), env, "query", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
}

// Worker starts a worker.
func (s *Site) Worker(ctx context.Context, name string) (*Process, error) {
	return s.startRole(ctx, name, "worker", "--ops-listen", "127.0.0.1:0")
}

// Scheduler starts a scheduler.
func (s *Site) Scheduler(ctx context.Context, name string) (*Process, error) {
	return s.startRole(ctx, name, "scheduler", "--ops-listen", "127.0.0.1:0")
}

// startRole starts a process of freshet. The first argument is its role.
func (s *Site) startRole(ctx context.Context, name string, args ...string) (*Process, error) {
	env, err := s.Configure(name, s.Broker, "")
	if err != nil {
		return nil, err
	}
	return s.Start(ctx, name, Ready(args[0]), env, args...)
}

// StartTarget starts a process that serves its metrics at an address. For a query service,
// Process.URL is the URL of its API.
func (s *Site) StartTarget(ctx context.Context, name, role, address string) (*Process, error) {
	args := []string{role, "--ops-listen", address}
	if role == "query" {
		args = append(args, "--listen", "127.0.0.1:0")
	}
	return s.startRole(ctx, name, args...)
}
