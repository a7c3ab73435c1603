// Package registryhosts lists the files and hosts named in a hosts.toml. The other keys are for
// containerd's library. Pure.
package registryhosts

import (
	"cmp"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// named holds the keys that name files. Each is a string, a list, or a list of lists.
type named struct {
	CA     any `toml:"ca"`
	Client any `toml:"client"`
}

// Files returns the certificates and keys named in a hosts.toml in dir. An unparsable file names
// none: the library ignores it, too.
func Files(dir string, text []byte) []string {
	var f struct {
		named
		Host map[string]named `toml:"host"`
	}
	if err := toml.Unmarshal(text, &f); err != nil {
		return nil
	}
	var files []string
	for _, n := range append(slices.Collect(maps.Values(f.Host)), f.named) {
		files = append(append(files, paths(dir, n.CA)...), paths(dir, n.Client)...)
	}
	return files
}

// Addresses returns the hosts of a hosts.toml as host:port, except those that cannot be parsed.
func Addresses(text []byte) []string {
	var f struct {
		Server string         `toml:"server"`
		Host   map[string]any `toml:"host"`
	}
	if err := toml.Unmarshal(text, &f); err != nil {
		return nil
	}
	var all []string
	for _, name := range append(slices.Sorted(maps.Keys(f.Host)), f.Server) {
		if name != "" && !strings.Contains(name, "://") {
			name = "https://" + name
		}
		u, err := url.Parse(name)
		if err != nil || u.Hostname() == "" {
			continue
		}
		port := "443"
		if u.Scheme == "http" {
			port = "80"
		}
		all = append(all, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)))
	}
	return all
}

func paths(dir string, value any) []string {
	switch v := value.(type) {
	case string:
		if !filepath.IsAbs(v) {
			v = filepath.Join(dir, v)
		}
		return []string{v}
	case []any:
		var all []string
		for _, e := range v {
			all = append(all, paths(dir, e)...)
		}
		return all
	}
	return nil
}
