package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// askRuntime asks an OCI runtime. `--version` must work; `features` need not:
// crun before 1.8.6 and gVisor before 2025 do not have it.
func askRuntime(ctx context.Context, path string) (*Runtime, error) {
	out, err := run(ctx, path, "--version")
	if err != nil {
		return nil, err
	}
	rt, err := parseVersion(string(out))
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", path, err)
	}
	out, err = run(ctx, path, "features")
	var exit *exec.ExitError
	switch {
	case err == nil:
		// A runtime that prints something else has no such command.
		rt.Features = parseFeatures(out)
	case ctx.Err() != nil, Transient(err), !errors.As(err, &exit):
		return nil, err
	}
	rt.Needs, err = needs(ctx, path, rt)
	return rt, err
}

// firstLine is "runc version 1.5.2", "youki version: 0.5.7", "runsc version
// release-20250512.0". Wrappers (nvidia-container-runtime) print a line of
// their own before the runtime's.
var firstLine = regexp.MustCompile(`(?m)^\s*(\S+) version:?\s+(\S+)\s*$`)

var specLine = regexp.MustCompile(`(?m)^\s*spec:\s*(\S+)\s*$`)

var tagLine = regexp.MustCompile(`(?m)^[+-][A-Z0-9_:]+( [+-][A-Z0-9_:]+)*\s*$`)

func parseVersion(out string) (*Runtime, error) {
	rt := &Runtime{}
	for _, m := range firstLine.FindAllStringSubmatch(out, -1) {
		if rt.Version == "" {
			rt.Version = m[2]
		}
		switch m[1] {
		case Runc, Crun, Youki, Runsc:
			rt.Name, rt.Version = m[1], m[2]
		}
		if rt.Name != "" {
			break
		}
	}
	if rt.Version == "" && strings.TrimSpace(out) == "" {
		return nil, fmt.Errorf("no output, so this is not an OCI runtime; correct the handler's runtime_path: %w", errdefs.ErrUnavailable)
	}
	if m := specLine.FindStringSubmatch(out); m != nil {
		rt.SpecVersion = m[1]
	}
	rt.BuildTags = strings.Fields(tagLine.FindString(out))
	if len(rt.BuildTags) == 0 {
		rt.BuildTags = nil
	}
	rt.OwnKernel = rt.Name == Runsc
	return rt, nil
}

// parseFeatures returns nil for what is no features document.
func parseFeatures(out []byte) *features.Features {
	f := &features.Features{}
	if err := json.Unmarshal(out, f); err != nil || (f.OCIVersionMax == "" && f.Linux == nil && f.MountOptions == nil) {
		return nil
	}
	return f
}
