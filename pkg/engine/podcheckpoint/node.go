package podcheckpoint

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// thisNode is what manifests say of the machine.
func thisNode() (manifest.Node, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return manifest.Node{}, fmt.Errorf("uname: %w", err)
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return manifest.Node{}, err
	}
	return manifest.Node{
		Architecture: unix.ByteSliceToString(u.Machine[:]), Kernel: unix.ByteSliceToString(u.Release[:]), CPUFeatures: features(string(text)),
	}, nil
}

// features are those of the first processor in /proc/cpuinfo, sorted: the others have the
// same. Pure.
func features(cpuinfo string) []string {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if key = strings.TrimSpace(key); key == "flags" || key == "Features" {
			all := strings.Fields(value)
			slices.Sort(all)
			return slices.Compact(all)
		}
	}
	return nil
}
