package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe"
)

// version is the release, a semantic version without "v". The build sets it with
// -ldflags="-X=github.com/berth-cri/berth/pkg/daemon.version=1.2.3".
var version string

// revision is the commit, set in the same way for a build without Go's VCS stamp (-buildvcs=false).
var revision string

// unreleased is the version of a build without one. It is a semantic version because the kubelet
// parses it.
const unreleased = "0.0.0-dev"

const criVersion = "v1"

// Build describes a build of berth.
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

// Lacking returns a problem for each handler and candidate of a configuration that a daemon on this
// machine would not find ready. It runs no self-check pods.
func Lacking(ctx context.Context, cfg *config.Config) config.Problems {
	checker, subjects := probe.NewChecker(probe.New(shim.Protocol{}, cfg.SearchPath...)), lifecycle.Candidates(cfg)
	found := make(config.Problems, len(subjects))
	var all sync.WaitGroup
	for i, d := range subjects {
		all.Go(func() {
			if err := able(ctx, checker, cfg, d); err != nil {
				found[i].Message = fmt.Sprintf("handler %q: %s", d.Name, printable.Line(printable.Error(err)))
				if d.Binary == handler.BinaryCandidate {
					found[i].Message = "candidate of " + found[i].Message
				}
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(found, func(p config.Problem) bool { return p.Message == "" })
}

func able(ctx context.Context, checker *probe.Checker, cfg *config.Config, d *handler.Definition) error {
	address := cfg.Snapshotters[cmp.Or(d.Snapshotter, cfg.Engine.Snapshotter)].Address
	if d.Type == handler.CRI {
		address = d.Endpoint
	} else if _, err := checker.Check(ctx, d, probe.Look); err != nil || address == "" {
		return err
	}
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(address, "unix://"), 3*time.Second)
	if err != nil {
		return fmt.Errorf("cannot connect to its daemon: %w", err)
	}
	return conn.Close()
}
