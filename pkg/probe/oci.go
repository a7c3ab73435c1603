package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// askRuntime calls an OCI runtime. `--version` must work; `features` is optional, because crun
// before 1.8.6 and gVisor before 2025 do not have it. Any program may accept both, so one of the
// outputs must identify a runtime.
func askRuntime(ctx context.Context, path string) (*Runtime, error) {
	out, err := run(ctx, path, "--version")
	if err != nil {
		return nil, err
	}
	version := string(out)
	rt := parseVersion(version)
	out, err = run(ctx, path, "features")
	if err == nil {
		// A runtime that prints something else does not have the command.
		rt.Features = parseFeatures(out)
	} else if err := unlessExit(ctx, err); err != nil {
		return nil, err
	}
	if rt.Name == "" && rt.SpecVersion == "" && rt.Features == nil {
		first, _, _ := strings.Cut(strings.TrimSpace(version), "\n")
		return nil, fmt.Errorf("%s is not an OCI runtime: its --version (%.80q) names no runtime that berth knows and no \"spec: VERSION\", and its features command prints no features; correct the handler's runtime_path: %w",
			path, first, errdefs.ErrUnavailable)
	}
	rt.Needs, err = needs(ctx, path, rt)
	return rt, err
}

// firstLine matches "runc version 1.5.2", "youki version: 0.5.7", "runsc version
// release-20250512.0", and "version: 0.6.6" in sysbox-runc's table. Wrappers
// (nvidia-container-runtime) print their own line before the runtime's.
var firstLine = regexp.MustCompile(`(?m)^\s*(?:(\S+) )?version:?\s+(\S+)\s*$`)

// specLine matches "spec: 1.2.0", and sysbox-runc's "oci-specs: 1.1.0+dev".
var specLine = regexp.MustCompile(`(?m)^\s*(?:spec|oci-specs):\s*(\S+)\s*$`)

var tagLine = regexp.MustCompile(`(?m)^[+-][A-Z0-9_:]+( [+-][A-Z0-9_:]+)*\s*$`)

func parseVersion(out string) *Runtime {
	rt := &Runtime{}
	for _, m := range firstLine.FindAllStringSubmatch(out, -1) {
		rt.Version = cmp.Or(rt.Version, m[2])
		switch m[1] {
		case Runc, Crun, Youki, Runsc:
			rt.Name, rt.Version = m[1], m[2]
		}
		if rt.Name != "" {
			break
		}
	}
	if m := specLine.FindStringSubmatch(out); m != nil {
		rt.SpecVersion = m[1]
	}
	rt.BuildTags = strings.Fields(tagLine.FindString(out))
	if len(rt.BuildTags) == 0 {
		rt.BuildTags = nil
	}
	return rt
}

// parseFeatures returns nil unless out is a features document.
func parseFeatures(out []byte) *features.Features {
	f := &features.Features{}
	if err := json.Unmarshal(out, f); err != nil || (f.OCIVersionMax == "" && f.Linux == nil && f.MountOptions == nil) {
		return nil
	}
	return f
}
