// Package registry asks registries for images: by hosts.toml, with credentials for whom
// they are meant for, within bounds of size and time.
//
// A Client is of one pull. Everything may be called at any time from any goroutine.
package registry

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/trusted"
)

// userAgent is how the daemon presents itself to registries.
const userAgent = "berth"

// Client is that of one pull: connections and tokens live as long as
// the pull does.
type Client struct {
	resolver remotes.Resolver
	wire     *wire
	options  Options

	mu         sync.Mutex
	hosts      map[string][]docker.RegistryHost
	transports []*http.Transport
}

// Options say how a registry is asked. All fields but HostsDir, Credentials and PlainHTTP
// are required.
type Options struct {
	// HostsDir has the hosts.toml files of registries below it; empty is none.
	HostsDir string
	// Credentials are for hosts that ask for some; nil is anonymous.
	Credentials *Credentials
	// Limits must be complete.
	Limits bounds.Limits
	// Window is over how long the rate of a download is measured.
	Window time.Duration
	// Progress hears of every byte.
	Progress *Progress
	// Connections is how many may fetch parts of large layers at the same time.
	Connections int
	// PlainHTTP is for registries without TLS that have no hosts.toml.
	PlainHTTP bool
	// Ahead bounds how many parts, of PartSize bytes each, all pulls may have in memory.
	Ahead *semaphore.Weighted
}

// New makes the client of one pull, whose log is that of ctx. It is to be closed.
func New(ctx context.Context, o Options) *Client {
	r := &Client{wire: &wire{limits: o.Limits, window: o.Window, progress: o.Progress}, hosts: map[string][]docker.RegistryHost{}, options: o}
	options := config.HostOptions{
		UpdateClient: func(c *http.Client) error {
			r.adopt(c)
			return nil
		},
	}
	if o.PlainHTTP {
		options.DefaultScheme = "http"
	}
	if o.HostsDir != "" {
		options.HostDir = config.HostDirFromRoot(o.HostsDir)
	}
	r.resolver = docker.NewResolver(docker.ResolverOptions{
		Hosts:   r.once(o.Credentials, configured(ctx, options)),
		Headers: http.Header{"User-Agent": {userAgent}},
	})
	return r
}

// configured has the hosts of a registry from its hosts.toml, or containerd's guess
// without one. Advice on a configuration is logged only if there is one: a registry on
// localhost is tried over TLS and then without, which is no mistake of the node's.
func configured(ctx context.Context, o config.HostOptions) docker.RegistryHosts {
	advised, plain := config.ConfigureHosts(ctx, o), config.ConfigureHosts(withLogger(ctx, warningsOnly), o)
	return func(host string) ([]docker.RegistryHost, error) {
		if o.HostDir == nil {
			return plain(host)
		}
		if dir, err := o.HostDir(host); errdefs.IsNotFound(err) || err == nil && dir == "" {
			return plain(host)
		} else if err == nil {
			if err := trusted.Hosts(dir); err != nil {
				return nil, err
			}
		}
		return advised(host)
	}
}

// warningsOnly takes a logger's advice away.
func warningsOnly(l *logrus.Logger) { l.Level = min(l.Level, log.WarnLevel) }

// Resolve returns what a name stands for.
func (r *Client) Resolve(ctx context.Context, name string) (imagespec.Descriptor, error) {
	_, desc, err := r.resolver.Resolve(ctx, name)
	return desc, err
}

// Fetcher fetches what belongs to a name.
func (r *Client) Fetcher(ctx context.Context, name string) (*Fetcher, error) {
	inner, err := r.resolver.Fetcher(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Fetcher{Fetcher: inner, elsewhere: r.elsewhere(), turn: semaphore.NewWeighted(1), connections: semaphore.NewWeighted(int64(r.options.Connections)), memory: r.options.Ahead}, nil
}

// once keeps the answer of hosts, so that resolving and fetching share
// connections and tokens.
func (r *Client) once(creds *Credentials, hosts docker.RegistryHosts) docker.RegistryHosts {
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

// adopt bounds what the client is answered, and remembers its connections for Close.
func (r *Client) adopt(c *http.Client) {
	if t, ok := c.Transport.(*http.Transport); ok {
		t.MaxResponseHeaderBytes = maxHeader
		r.mu.Lock()
		r.transports = append(r.transports, t)
		r.mu.Unlock()
	}
	if _, adopted := c.Transport.(wireTransport); !adopted {
		c.Transport = wireTransport{rt: c.Transport, wire: r.wire, layers: true, limit: r.wire.limits.MaxManifestSize}
	}
}

// elsewhere is the client for what lies on no registry: it has no credentials.
func (r *Client) elsewhere() *http.Client {
	c := &http.Client{Transport: docker.DefaultHTTPTransport(nil)}
	r.adopt(c)
	return c
}

// Close gives up the idle connections; without it each would hold memory for minutes.
func (r *Client) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
}
