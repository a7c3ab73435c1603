package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// builtin are the snapshotters that need no table.
var builtin = []string{"overlayfs", "erofs", "native"}

// snapshotterName is what directories and labels may have.
var snapshotterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// snapshotterNames are what a snapshotter key may say.
func (c *Config) snapshotterNames() []string {
	return slices.Concat(builtin, slices.Sorted(maps.Keys(c.Snapshotters)))
}

func (v *validator) snapshotters(all map[string]Snapshotter) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		key := tomlfile.Under("snapshotters", name)
		switch address := all[name].Address; {
		case slices.Contains(builtin, name):
			v.wrong(key, fmt.Sprintf("%q is berth's own; give this one another name", name), "")
		case !snapshotterName.MatchString(name):
			v.wrong(key, "a snapshotter's name must have lower case letters, digits, '.', '_' and '-' only, at most 63", "")
		case address == "":
			v.wrong(key, "address is missing; set it to the path of the snapshotter's socket", "")
		case !filepath.IsAbs(strings.TrimPrefix(address, "unix://")):
			v.wrong(tomlfile.Under(key, "address"), fmt.Sprintf("%q must be the absolute path of a unix socket", address), "")
		case len(strings.TrimPrefix(address, "unix://")) > maxSocketPath:
			v.wrong(tomlfile.Under(key, "address"), fmt.Sprintf("must be at most %d bytes long, as paths of sockets are", maxSocketPath), "")
		}
	}
}
