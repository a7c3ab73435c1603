package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// runcShims drive an OCI runtime, so that its features are what counts. Every
// other shim is taken to have a kernel of its own, and to need a first container.
var runcShims = regexp.MustCompile(`^containerd-shim-runc-v\d+$`)

func isRuncShim(path string) bool { return runcShims.MatchString(filepath.Base(path)) }

// drivenRuntime finds the OCI runtime of a runc shim as the shim does: by its
// option BinaryName, by default "runc", in PATH.
func drivenRuntime(shim, binaryName string) (string, error) {
	if binaryName == "" {
		binaryName = Runc
	}
	path, err := exec.LookPath(binaryName)
	if err != nil {
		return "", fmt.Errorf("%s drives an OCI runtime that is missing: %w; install it or set options.BinaryName: %w", shim, err, errdefs.ErrUnavailable)
	}
	return path, nil
}

// askShim asks a shim by `-info` (containerd 2) or `-v`. A shim that answers
// neither is known by its identity alone; one that does not run is an error.
func askShim(ctx context.Context, s subject) (*Runtime, error) {
	rt, err := askShimInfo(ctx, s.path)
	if err != nil {
		return nil, err
	}
	if rt.Version == "" {
		if rt.Version, err = askShimVersion(ctx, s.path); err != nil {
			return nil, err
		}
	}
	rt.OwnKernel = s.runtime == ""
	if s.runtime == "" {
		return rt, nil
	}
	driven, err := askRuntime(ctx, s.runtime)
	if err != nil {
		return nil, fmt.Errorf("%s drives %w", s.path, err)
	}
	driven.ShimVersion = rt.Version
	return driven, nil
}

func askShimInfo(ctx context.Context, path string) (*Runtime, error) {
	rt := &Runtime{}
	out, err := run(ctx, path, "-info")
	if err != nil {
		return rt, unlessExit(ctx, err)
	}
	var info types.RuntimeInfo
	if len(out) == 0 || proto.Unmarshal(out, &info) != nil {
		return rt, nil
	}
	rt.Version = info.GetVersion().GetVersion()
	if f := info.GetFeatures(); strings.HasSuffix(f.GetTypeUrl(), "/features/Features") && json.Valid(f.GetValue()) {
		rt.Features = parseFeatures(f.GetValue())
	}
	return rt, nil
}

// shimVersion finds "Version:  v2.4.2" (containerd) and "version: 3.2.0," (Kata).
var shimVersion = regexp.MustCompile(`(?i)\bversion:\s+"?([^\s",]+)`)

func askShimVersion(ctx context.Context, path string) (string, error) {
	out, err := run(ctx, path, "-v")
	if err != nil {
		return "", unlessExit(ctx, err)
	}
	if m := shimVersion.FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	return "", nil
}

// unlessExit drops the error of a program that ran and said no: it does not
// know the flag, which is an answer. One that cannot run, or hangs, gave none.
func unlessExit(ctx context.Context, err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil && !Transient(err) {
		return nil
	}
	return err
}
