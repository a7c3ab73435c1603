package daemon

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// version is the release, a semantic version without "v". The build sets it:
// -ldflags "-X github.com/berth-cri/berth/pkg/daemon.version=1.2.3"
var version string

// revision is the commit, set in the same way for a build that Go may not ask
// git about (-buildvcs=false).
var revision string

// unreleased is the version of a build that was not given one. It is a semantic
// version because the kubelet parses it.
const unreleased = "0.0.0-dev"

const criVersion = "v1"

// Build says which build a binary is.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	CRI      string `json:"cri"`
}

// ThisBuild describes the running binary.
func ThisBuild() Build {
	b := Build{
		Version:  cmp.Or(version, unreleased),
		Revision: revision,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		CRI:      criVersion,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		}
	}
	return b
}
