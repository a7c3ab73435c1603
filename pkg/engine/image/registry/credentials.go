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

// Credentials are what a caller gave for a pull. Nil is anonymous: what
// hosts.toml says about a registry then counts alone.
type Credentials struct {
	// server limits the credentials to one registry host; empty is all hosts
	// that are configured for the image's registry.
	server string
	// user is empty when secret is an identity token.
	user, secret string
}

// ParseAuth picks what to use of a CRI AuthConfig: user name and password,
// else the identity token, else the base64 form. Errors name no secret.
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
		// The decoder's text would quote the input.
		return "", "", fmt.Errorf("auth.auth of the pull request is not base64: %w", errdefs.ErrInvalidArgument)
	}
	user, secret, ok := strings.Cut(strings.TrimRight(string(decoded), "\x00"), ":")
	if !ok {
		return "", "", fmt.Errorf("auth.auth of the pull request does not decode to user:password: %w", errdefs.ErrInvalidArgument)
	}
	return user, secret, nil
}

// Key tells credentials apart, and holds no secret; empty for nil.
func (c *Credentials) Key() string {
	if c == nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", c.server, c.user, c.secret))
	return hex.EncodeToString(sum[:])
}

// forHost is asked when a host that is configured for the image's registry wants
// credentials; no other host gets any (authorizer).
func (c *Credentials) forHost(host string) (user, secret string, err error) {
	if c == nil || (c.server != "" && c.server != registryHost(host)) {
		return "", "", nil
	}
	return c.user, c.secret, nil
}

// isFor says whether a host that asks gets something.
func (c *Credentials) isFor(host string) bool {
	_, secret, err := c.forHost(host)
	return err == nil && secret != ""
}

// prevail takes the Authorization header that hosts.toml has for the registry
// itself away if c is for it: a pod with wrong credentials must not get an image
// by the node's. Mirrors keep theirs, because c is not meant for them. Of the
// hosts of a registry the last one is itself.
func (c *Credentials) prevail(registry string, hosts []docker.RegistryHost) {
	for i, h := range hosts {
		if i < len(hosts)-1 && h.Host != registry {
			continue
		}
		if c.isFor(h.Host) {
			h.Header.Del("Authorization")
		}
	}
}

// secrets returns what must not appear in any text. Of one or two letters,
// taking them out would tell more than leaving them.
func (c *Credentials) secrets() []string {
	if c == nil || len(c.secret) < 3 {
		return nil
	}
	return []string{c.secret, base64.StdEncoding.EncodeToString([]byte(c.user + ":" + c.secret))}
}

// registryHost is the host (and port) of a server address, which may be a bare
// host or a URL. The names of Docker's own registry are one.
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
