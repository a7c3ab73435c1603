package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/distribution/reference"
)

// maxName is the length limit of a name.
const maxName = 1024

// Image is a normalized name: the registry in lower case and without the default port of TLS.
// Otherwise another spelling would circumvent a rule.
type Image struct {
	// Registry is a host, with its port if it has one: "docker.io".
	Registry string
	// Path is the repository in the registry: "library/busybox".
	Path string
	// Tag and Digest are empty if the name has none.
	Tag, Digest string
}

// Repository returns the registry and the path.
func (i Image) Repository() string { return i.Registry + "/" + i.Path }

// ParseImage parses a full name, with its registry.
func ParseImage(name string) (Image, error) {
	if len(name) > maxName {
		return Image{}, fmt.Errorf("the name has more than %d characters", maxName)
	}
	for _, c := range []byte(name) {
		// strings.ToLower maps some other letters to ASCII.
		if c <= ' ' || c > '~' {
			return Image{}, fmt.Errorf("%q is not an image's name: it has characters other than printable ASCII", name)
		}
	}
	host, path, _ := strings.Cut(name, "/")
	named, err := reference.ParseNormalizedNamed(strings.ToLower(host) + "/" + path)
	if err != nil {
		return Image{}, fmt.Errorf("%q is not an image's name: %w", name, err)
	}
	i := Image{Registry: Canonical(reference.Domain(named)), Path: reference.Path(named)}
	if i.Registry != Canonical(host) {
		return Image{}, fmt.Errorf("%q does not begin with a registry; write it as docker.io/library/busybox:1", name)
	}
	if tagged, ok := named.(reference.Tagged); ok {
		i.Tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		i.Digest = digested.Digest().String()
	}
	return i, nil
}

// aliases maps hosts to the canonical host of their registry.
var aliases = map[string]string{"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io"}

// Canonical returns the normalized registry: lower case, without the default port of TLS, and
// aliases replaced.
func Canonical(host string) string {
	host = strings.ToLower(host)
	// Clients parse a port as a number.
	if i := strings.LastIndexByte(host, ':'); i > 0 {
		if port, err := strconv.ParseUint(host[i+1:], 10, 16); err == nil {
			host = host[:i+1] + strconv.FormatUint(port, 10)
		}
	}
	// A host without a dot is a registry only with a port.
	if bare := strings.TrimSuffix(host, ":443"); bare == "localhost" || strings.ContainsAny(bare, ".[") {
		host = bare
	}
	if same, ok := aliases[host]; ok {
		return same
	}
	return host
}

// parsePrefix parses a registry with or without components of a repository.
func parsePrefix(prefix string) (registry, path string, err error) {
	// A prefix is valid if a repository below it is a valid name.
	const below = "/x/x"
	i, err := ParseImage(prefix + below)
	switch {
	case prefix == "":
		return "", "", errors.New("the prefix is missing; write a registry, such as docker.io")
	case err != nil:
		return "", "", fmt.Errorf("prefix %q is not a registry with or without components of a repository, such as docker.io/library", prefix)
	}
	return i.Registry, strings.TrimPrefix(strings.TrimSuffix("/"+i.Path, below), "/"), nil
}
