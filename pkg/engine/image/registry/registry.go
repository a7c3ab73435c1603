// Package registry accesses registries as hosts.toml configures them, with credentials only for
// the hosts that they are meant for, within limits of size and time.
//
// A Client belongs to one pull or push. Everything is safe for concurrent use.
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

// userAgent is the User-Agent header of requests to registries.
const userAgent = "berth"

// Client belongs to one pull or push: connections and tokens live as long as that does.
type Client struct {
	resolver remotes.Resolver
	wire     *wire
	options  Options

	mu         sync.Mutex
	hosts      map[string][]docker.RegistryHost
	transports []*http.Transport
}

// Options configure a Client. All fields but HostsDir, Credentials and PlainHTTP are required.
type Options struct {
	// HostsDir has the hosts.toml files of registries; empty is none.
	HostsDir string
	// Credentials are for hosts that require some; nil is anonymous.
	Credentials *Credentials
	// Limits must be complete.
	Limits bounds.Limits
	// Window is the time over which the rate of a download is measured.
	Window time.Duration
	// Progress counts every byte.
	Progress *Progress
	// Connections bounds the concurrent fetches of parts of large layers.
	Connections int
	// PlainHTTP is for registries without TLS that have no hosts.toml.
	PlainHTTP bool
	// Ahead bounds the parts, of PartSize bytes each, that all pulls may have in memory.
	Ahead *semaphore.Weighted
}

// New returns a client, which logs to the logger of ctx. The caller closes it.
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

// configured returns the hosts of a registry from its hosts.toml, or containerd's defaults without
// that file. Without it only warnings and errors are logged: containerd tries a registry on
// localhost with TLS and then without, which is not an error of the node.
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

func warningsOnly(l *logrus.Logger) { l.Level = min(l.Level, log.WarnLevel) }

// Resolve returns the descriptor of a name.
func (r *Client) Resolve(ctx context.Context, name string) (imagespec.Descriptor, error) {
	_, desc, err := r.resolver.Resolve(ctx, name)
	return desc, err
}

// Fetcher returns a fetcher for the content of a name.
func (r *Client) Fetcher(ctx context.Context, name string) (*Fetcher, error) {
	inner, err := r.resolver.Fetcher(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Fetcher{Fetcher: inner, external: r.external(), slot: semaphore.NewWeighted(1), connections: semaphore.NewWeighted(int64(r.options.Connections)), memory: r.options.Ahead}, nil
}

// once caches the hosts of a registry, so that resolving and fetching share connections and tokens.
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
		creds.overrideHeaders(name, found)
		bindCredentials(creds, r.wire, found)
		r.mu.Lock()
		r.hosts[name] = found
		r.mu.Unlock()
		return found, nil
	}
}

// adopt bounds the answers to a client, and records its connections for Close.
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

// external returns the client for content outside registries: it has no credentials.
func (r *Client) external() *http.Client {
	c := &http.Client{Transport: docker.DefaultHTTPTransport(nil)}
	r.adopt(c)
	return c
}

// Pusher returns a pusher for a name.
func (r *Client) Pusher(ctx context.Context, name string) (remotes.Pusher, error) {
	return r.resolver.Pusher(ctx, name)
}

// Close closes the idle connections; otherwise each would hold memory for minutes.
func (r *Client) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
}
