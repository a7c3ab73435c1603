package image

import (
	"context"
	"net/http"
	"sync"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
)

// userAgent is how the daemon presents itself to registries.
const userAgent = "berth"

// registry is the client of one pull: connections and tokens live as long as
// the pull does.
type registry struct {
	resolver remotes.Resolver

	mu         sync.Mutex
	hosts      map[string][]docker.RegistryHost
	transports []*http.Transport
}

// newRegistry makes a client that reads hosts.toml files below hostsDir (none
// if empty) and uses creds where a host asks for credentials.
func newRegistry(ctx context.Context, hostsDir string, creds *credentials, p *progress) *registry {
	r := &registry{hosts: map[string][]docker.RegistryHost{}}
	options := config.HostOptions{
		Credentials: creds.forHost,
		UpdateClient: func(c *http.Client) error {
			r.adopt(c, p)
			return nil
		},
	}
	if hostsDir != "" {
		options.HostDir = config.HostDirFromRoot(hostsDir)
	}
	r.resolver = docker.NewResolver(docker.ResolverOptions{
		Hosts:   r.once(creds, configured(ctx, options)),
		Headers: http.Header{"User-Agent": {userAgent}},
	})
	return r
}

// once keeps the answer of hosts, so that resolving and fetching share
// connections and tokens.
func (r *registry) once(creds *credentials, hosts docker.RegistryHosts) docker.RegistryHosts {
	return func(name string) ([]docker.RegistryHost, error) {
		r.mu.Lock()
		known, ok := r.hosts[name]
		r.mu.Unlock()
		if ok {
			return known, nil
		}
		found, err := hosts(name)
		if err != nil {
			return nil, err
		}
		creds.prevail(name, found)
		r.mu.Lock()
		r.hosts[name] = found
		r.mu.Unlock()
		return found, nil
	}
}

// adopt counts the client's traffic, and remembers its connections for close.
func (r *registry) adopt(c *http.Client, p *progress) {
	if t, ok := c.Transport.(*http.Transport); ok {
		r.mu.Lock()
		r.transports = append(r.transports, t)
		r.mu.Unlock()
	}
	if _, counted := c.Transport.(countingTransport); !counted {
		c.Transport = p.transport(c.Transport)
	}
}

// close gives up the idle connections; without it each would hold memory for minutes.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
}
