package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/containerd/errdefs"
)

// maxRedirects bounds the redirects of a request.
const maxRedirects = 10

// origin identifies a server: a scheme, a host and a port.
type origin struct{ scheme, host, port string }

func originOf(u *url.URL) origin {
	o := origin{strings.ToLower(u.Scheme), strings.ToLower(u.Hostname()), u.Port()}
	if o.port == "" {
		o.port = map[string]string{"http": "80", "https": "443"}[o.scheme]
	}
	return o
}

// covers reports whether the server to may receive o's credentials: it is o, or the same host (a
// name or an address) over TLS on another port. Only o itself can redirect to that port, and the
// server there needs a certificate for the host.
func (o origin) covers(to origin) bool {
	return o == to || to.scheme == "https" && o.host == to.host
}

// authorizer authorizes requests to a configured host of a registry. Hosts that it redirects to do
// not get its credentials, unless self covers them.
type authorizer struct {
	self origin
	// known are the origins of all hosts that are configured for the registry.
	known map[origin]*hostAuth
	// stranger requests tokens without credentials.
	stranger docker.Authorizer
}

// hostAuth authorizes requests to one configured host.
type hostAuth struct {
	docker.Authorizer
	// secret is set if credentials or headers are configured for the host.
	secret bool
	// plain is set if the host may be contacted without TLS.
	plain bool
}

// publicHeaders are the headers that go to hosts without configuration.
var publicHeaders = []string{"Accept", "Accept-Encoding", "Range", "Referer", "User-Agent"}

// bindCredentials sets the authorizers of a registry's hosts.
func bindCredentials(creds *Credentials, w *wire, hosts []docker.RegistryHost) {
	known := map[origin]*hostAuth{}
	for _, h := range hosts {
		o := originOf(&url.URL{Scheme: h.Scheme, Host: h.Host})
		a := &hostAuth{plain: o.scheme == "http", secret: creds.isFor(h.Host) || len(h.Header) > 0}
		if _, ours := h.Client.Transport.(wireTransport); !ours {
			// containerd's fallback transport, which may do without TLS.
			a.plain = true
			known[origin{"http", o.host, o.port}] = a
		}
		// These credentials also apply if the host redirects to itself on another port.
		own := func(string) (user, secret string, err error) { return creds.forHost(h.Host) }
		client := &http.Client{Transport: w.tokens(h.Client.Transport), CheckRedirect: a.checkRedirect}
		a.Authorizer = docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthHeader(h.Header), docker.WithAuthCreds(own))
		known[o] = a
	}
	for i, h := range hosts {
		client := &http.Client{Transport: w.tokens(h.Client.Transport)}
		hosts[i].Authorizer = &authorizer{
			self: originOf(&url.URL{Scheme: h.Scheme, Host: h.Host}), known: known,
			stranger: docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds((*Credentials)(nil).forHost)),
		}
	}
}

// host returns the configured host at o, or nil.
func (a *authorizer) host(o origin) *hostAuth {
	if host, ok := a.known[o]; ok {
		return host
	}
	if a.self.covers(o) {
		return a.known[a.self]
	}
	return nil
}

// Authorize implements docker.Authorizer. It is called for each request, also for requests that
// follow a redirect and carry the headers of the first request.
func (a *authorizer) Authorize(ctx context.Context, r *http.Request) error {
	o := originOf(r.URL)
	host := a.host(o)
	if o != a.self && host != a.known[a.self] {
		for name := range r.Header {
			if !slices.Contains(publicHeaders, name) {
				r.Header.Del(name)
			}
		}
	}
	if host != nil {
		return host.Authorize(ctx, r)
	}
	return a.stranger.Authorize(ctx, r)
}

func (a *authorizer) AddResponses(ctx context.Context, responses []*http.Response) error {
	last := responses[len(responses)-1]
	host := a.host(originOf(last.Request.URL))
	if host == nil {
		return a.stranger.AddResponses(ctx, responses)
	}
	if err := a.checkRealm(host, last); err != nil {
		return err
	}
	return host.AddResponses(ctx, responses)
}

// checkRealm refuses a token server that would get secrets in the clear. Only hosts that may be
// contacted without TLS are excepted.
func (a *authorizer) checkRealm(host *hostAuth, resp *http.Response) error {
	if !host.secret {
		return nil
	}
	for _, c := range auth.ParseAuthHeader(resp.Header) {
		realm, err := url.Parse(c.Parameters["realm"])
		if c.Scheme != auth.BearerAuth || err == nil && (strings.EqualFold(realm.Scheme, "https") || a.plain(realm)) {
			continue
		}
		return fmt.Errorf("registry %s names a token server without TLS; credentials are not sent to it: %w", resp.Request.URL.Host, errdefs.ErrPermissionDenied)
	}
	return nil
}

// plain reports whether the host of a realm may be contacted without TLS, on any port.
func (a *authorizer) plain(realm *url.URL) bool {
	if !strings.EqualFold(realm.Scheme, "http") {
		return false
	}
	for o, known := range a.known {
		if known.plain && strings.EqualFold(o.host, realm.Hostname()) {
			return true
		}
	}
	return false
}

// checkRedirect refuses a redirect by which a token server would pass on credentials.
func (a *hostAuth) checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errors.New("too many redirects")
	}
	from, to := originOf(via[0].URL), originOf(r.URL)
	if a.secret && !from.covers(to) {
		return fmt.Errorf("token server %s redirects to %s; credentials are not sent to it: %w", net.JoinHostPort(from.host, from.port), net.JoinHostPort(to.host, to.port), errdefs.ErrPermissionDenied)
	}
	return nil
}
