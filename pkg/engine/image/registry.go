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
	wire     *wire

	mu         sync.Mutex
	hosts      map[string][]docker.RegistryHost
	transports []*http.Transport
}

// newRegistry makes a client that reads hosts.toml files below hostsDir (none
// if empty) and uses creds where a host asks for credentials.
func newRegistry(ctx context.Context, hostsDir string, creds *credentials, w *wire) *registry {
	r := &registry{wire: w, hosts: map[string][]docker.RegistryHost{}}
	options := config.HostOptions{
		UpdateClient: func(c *http.Client) error {
			r.adopt(c)
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
		bindCredentials(creds, r.wire, found)
		r.mu.Lock()
		r.hosts[name] = found
		r.mu.Unlock()
		return found, nil
	}
}

// adopt bounds what the client is answered, and remembers its connections for close.
func (r *registry) adopt(c *http.Client) {
	if t, ok := c.Transport.(*http.Transport); ok {
		t.MaxResponseHeaderBytes = maxHeader
		r.mu.Lock()
		r.transports = append(r.transports, t)
		r.mu.Unlock()
	}
	if _, adopted := c.Transport.(wireTransport); !adopted {
		c.Transport = r.wire.transport(c.Transport)
	}
}

// elsewhere is the client for what lies on no registry: it has no credentials.
func (r *registry) elsewhere() *http.Client {
	c := &http.Client{Transport: docker.DefaultHTTPTransport(nil)}
	r.adopt(c)
	return c
}

// close gives up the idle connections; without it each would hold memory for minutes.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
}
