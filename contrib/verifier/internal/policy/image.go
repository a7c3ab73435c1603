package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/distribution/reference"
)

// maxName is the longest name that is read.
const maxName = 1024

// Image is a name in its one spelling: the registry in lower case and without the
// port that TLS has anyway. Else a rule could be walked around by another spelling.
type Image struct {
	// Registry is a host, with its port if it has one: "docker.io".
	Registry string
	// Path is the repository there: "library/busybox".
	Path string
	// Tag and Digest are empty if the name has none.
	Tag, Digest string
}

// Repository is the registry and the path.
func (i Image) Repository() string { return i.Registry + "/" + i.Path }

// ParseImage reads a full name, with its registry.
func ParseImage(name string) (Image, error) {
	if len(name) > maxName {
		return Image{}, fmt.Errorf("the name has more than %d characters", maxName)
	}
	for _, c := range []byte(name) {
		// Lower case makes ASCII of some letters that are not.
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

// aliases are other hosts of the same registry.
var aliases = map[string]string{"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io"}

// Canonical is the one spelling of a registry: lower case, without the port of TLS, and
// one host of those that are the same.
func Canonical(host string) string {
	host = strings.ToLower(host)
	// Whoever connects reads a port as a number.
	if i := strings.LastIndexByte(host, ':'); i > 0 {
		if port, err := strconv.ParseUint(host[i+1:], 10, 16); err == nil {
			host = host[:i+1] + strconv.FormatUint(port, 10)
		}
	}
	// A host without a dot needs its port to be one.
	if bare := strings.TrimSuffix(host, ":443"); bare == "localhost" || strings.ContainsAny(bare, ".[") {
		host = bare
	}
	if same, ok := aliases[host]; ok {
		return same
	}
	return host
}

// parsePrefix reads a registry with or without components of a repository.
func parsePrefix(prefix string) (registry, path string, err error) {
	// A repository below it is a name, and nothing else is.
	const below = "/x/x"
	i, err := ParseImage(prefix + below)
	switch {
	case prefix == "":
		return "", "", errors.New("the prefix is missing; write a registry, as docker.io")
	case err != nil:
		return "", "", fmt.Errorf("prefix %q is not a registry, or one with components of a repository, as docker.io/library", prefix)
	}
	return i.Registry, strings.TrimPrefix(strings.TrimSuffix("/"+i.Path, below), "/"), nil
}
