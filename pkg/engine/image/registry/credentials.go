package registry

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Credentials are the credentials of a pull. Nil is anonymous: only those in hosts.toml apply then.
type Credentials struct {
	// server limits the credentials to one registry host; empty is all hosts
	// that are configured for the image's registry.
	server string
	// user is empty when secret is an identity token.
	user, secret string
}

// ParseAuth selects from a CRI AuthConfig: user name and password, else the identity token, else
// the base64 form. Errors contain no secret.
func ParseAuth(a *runtimeapi.AuthConfig) (*Credentials, error) {
	if a == nil {
		return nil, nil
	}
	c := &Credentials{server: registryHost(a.GetServerAddress())}
	switch {
	case a.GetUsername() != "":
		c.user, c.secret = a.GetUsername(), a.GetPassword()
	case a.GetIdentityToken() != "":
		c.secret = a.GetIdentityToken()
	case a.GetAuth() != "":
		user, secret, err := decodeBasic(a.GetAuth())
		if err != nil {
			return nil, err
		}
		c.user, c.secret = user, secret
	case a.GetRegistryToken() != "":
		return nil, fmt.Errorf("auth.registry_token is not supported; use username and password, auth or identity_token: %w", errdefs.ErrInvalidArgument)
	default:
		return nil, nil
	}
	return c, nil
}

func decodeBasic(auth string) (user, secret string, err error) {
	decoded, err := base64.StdEncoding.DecodeString(auth)
	if err != nil {
		// The decoder's error has only a position in the secret text.
		return "", "", fmt.Errorf("auth.auth of the pull request is not base64: %w", errdefs.ErrInvalidArgument)
	}
	user, secret, ok := strings.Cut(strings.TrimRight(string(decoded), "\x00"), ":")
	if !ok {
		return "", "", fmt.Errorf("auth.auth of the pull request does not decode to user:password: %w", errdefs.ErrInvalidArgument)
	}
	return user, secret, nil
}

// Key is the same for equal credentials, and holds no secret; empty for nil.
func (c *Credentials) Key() string {
	if c == nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", c.server, c.user, c.secret))
	return hex.EncodeToString(sum[:])
}

// forHost returns the credentials for a host that is configured for the image's registry. The
// authorizer passes no other host.
func (c *Credentials) forHost(host string) (user, secret string, err error) {
	if c == nil || (c.server != "" && c.server != registryHost(host)) {
		return "", "", nil
	}
	return c.user, c.secret, nil
}

// isFor reports whether a host gets credentials.
func (c *Credentials) isFor(host string) bool {
	_, secret, err := c.forHost(host)
	return err == nil && secret != ""
}

// overrideHeaders removes the Authorization header in hosts.toml of the registry itself, if c is
// for it: a pod with wrong credentials must not get an image by the node's credentials. Mirrors
// keep their headers, because c is not meant for them. The last of hosts is the registry itself.
func (c *Credentials) overrideHeaders(registry string, hosts []docker.RegistryHost) {
	for i, h := range hosts {
		if i < len(hosts)-1 && h.Host != registry {
			continue
		}
		if c.isFor(h.Host) {
			h.Header.Del("Authorization")
		}
	}
}

// secrets returns what must not appear in any text. A secret of one or two letters may appear: its
// removal would reveal it.
func (c *Credentials) secrets() []string {
	if c == nil || len(c.secret) < 3 {
		return nil
	}
	return []string{c.secret, base64.StdEncoding.EncodeToString([]byte(c.user + ":" + c.secret))}
}

// registryHost returns the host (and port) of a server address, which may be a bare host or a URL.
// All names of Docker's own registry become docker.io.
func registryHost(address string) string {
	host := address
	if _, rest, ok := strings.Cut(host, "://"); ok {
		host = rest
	}
	host, _, _ = strings.Cut(host, "/")
	switch host {
	case "docker.io", "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}
