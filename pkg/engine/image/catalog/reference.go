package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// ParseName parses an image name as the docker command line does: it fills in a missing registry,
// namespace or tag, and a digest takes precedence over a tag.
func ParseName(s string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(s)
	if err != nil {
		return nil, fmt.Errorf("image name %.300q: %v: %w", s, err, errdefs.ErrInvalidArgument)
	}
	return named, nil
}

// RecordNames returns the names to record for an image that was pulled as named and resolved to
// target: its tag, if it has one, and its digest.
func RecordNames(named reference.Named, target digest.Digest) ([]string, error) {
	if _, ok := named.(reference.Digested); ok {
		return []string{named.String()}, nil
	}
	canonical, err := reference.WithDigest(reference.TrimNamed(named), target)
	if err != nil {
		return nil, fmt.Errorf("name %s by digest: %w", named, err)
	}
	return []string{named.String(), canonical.String()}, nil
}

// minIDPrefix keeps short words, which are image names too, from being taken for ids.
const minIDPrefix = 6

// idPrefix returns the hex digits of s if s can be an image id or the beginning
// of one.
func idPrefix(s string) (string, bool) {
	hex := strings.TrimPrefix(s, "sha256:")
	if len(hex) < minIDPrefix || len(hex) > 64 {
		return "", false
	}
	return hex, strings.Trim(hex, "0123456789abcdef") == ""
}

// namePatterns match names of images.
type namePatterns []*regexp.Regexp

// newNamePatterns normalises the patterns that are whole names, so that
// "busybox" pins "docker.io/library/busybox:latest". '*' stands for any characters.
func newNamePatterns(patterns []string) namePatterns {
	out := make(namePatterns, 0, len(patterns))
	for _, p := range patterns {
		if named, err := ParseName(p); err == nil {
			p = named.String()
		}
		wild := strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*")
		out = append(out, regexp.MustCompile("(?s)^"+wild+"$"))
	}
	return out
}

func (p namePatterns) match(names ...string) bool {
	for _, pattern := range p {
		if slices.ContainsFunc(names, pattern.MatchString) {
			return true
		}
	}
	return false
}
