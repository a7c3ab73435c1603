package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// wasmEngines are the names of the shims that run WebAssembly modules in processes of the host:
// runwasi's, and those that are based on it.
var wasmEngines = []string{"lunatic", "slight", "spin", "wamr", "wasmedge", "wasmer", "wasmtime", "wws"}

var (
	// shimFile extracts the engine from a shim's file name, and shimName from the name that a shim
	// reports ("io.containerd.spin.v2"); runwasi's shims report the bare engine.
	shimFile = regexp.MustCompile(`^containerd-shim-(.+)-v\d+$`)
	shimName = regexp.MustCompile(`^(?:io\.containerd\.)?(.+?)(?:\.v\d+)?$`)
)

func engineOf(by *regexp.Regexp, called string) string {
	if m := by.FindStringSubmatch(called); m != nil {
		return m[1]
	}
	return ""
}

// RunsWasm reports whether a shim is known, by its file name, to run WebAssembly modules in
// processes of the host.
func RunsWasm(path string) bool {
	return slices.Contains(wasmEngines, engineOf(shimFile, filepath.Base(path)))
}

// runsWasm is RunsWasm for a probed shim. declared is set if the shim's reported name decides it;
// wasmImages is set if its handler runs only WebAssembly images. Pure.
func runsWasm(path, name string, wasmImages bool) (runs, declared bool) {
	if slices.Contains(wasmEngines, engineOf(shimName, name)) {
		return true, true
	}
	_, known := shimKernel(path, name)
	return name == "" && RunsWasm(path) || wasmImages && known == "", false
}

// drivenRuntime finds the OCI runtime of a runc shim as the shim does, by its option BinaryName,
// "runc" by default, but in dirs instead of this process's PATH.
func drivenRuntime(shim, binaryName string, dirs []string) (string, error) {
	binaryName = cmp.Or(binaryName, Runc)
	path := binaryName
	if filepath.Base(path) == path {
		path = hostfiles.FindIn(dirs, path)
	}
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("%s, the OCI runtime under %s, is missing or cannot be executed; install it or set options.BinaryName: %w", binaryName, shim, errdefs.ErrUnavailable)
	}
	return path, nil
}

// ShimReader decodes the output of a shim's -info: its name and version, and the features of the
// runtime that it drives, as JSON, if included. The caller implements it, because this package does
// not contain the shims' protocol.
type ShimReader interface {
	ReadInfo(answer []byte) (name, version string, features []byte, err error)
}

// askShim calls a shim with `-info` (containerd 2), `-v`, or `--version`. A shim without a usable
// answer is known by its identity alone; a shim that cannot run is an error.
func askShim(ctx context.Context, s subject, reader ShimReader) (*Runtime, error) {
	rt, err := askShimInfo(ctx, s.path, reader)
	if err != nil {
		return nil, err
	}
	for _, flag := range []string{"-v", "--version"} {
		if rt.Version != "" {
			break
		}
		name, version, err := askShimVersion(ctx, s.path, flag)
		if err != nil {
			return nil, err
		}
		rt.ShimName, rt.Version = cmp.Or(rt.ShimName, name), version
	}
	if s.runtime == "" {
		rt.Wasm, rt.WasmDeclared = runsWasm(s.path, rt.ShimName, s.wasmImages)
		rt.ShimAlone = true
		return rt, nil
	}
	driven, err := askRuntime(ctx, s.runtime)
	if err != nil {
		return nil, fmt.Errorf("the OCI runtime under %s: %w", s.path, err)
	}
	driven.ShimVersion, driven.ShimName = rt.Version, rt.ShimName
	return driven, nil
}

func askShimInfo(ctx context.Context, path string, reader ShimReader) (*Runtime, error) {
	rt := &Runtime{}
	if reader == nil {
		return rt, nil
	}
	out, err := run(ctx, path, "-info")
	if err != nil {
		return rt, unlessExit(ctx, err)
	}
	if len(out) == 0 {
		return rt, nil
	}
	name, version, features, err := reader.ReadInfo(out)
	if err != nil {
		return rt, nil //nolint:nilerr // not an answer to -info: -v is next
	}
	rt.ShimName, rt.Version = name, version
	if json.Valid(features) {
		rt.Features = parseFeatures(features)
	}
	return rt, nil
}

// shimVersion matches "Version:  v2.4.2" (containerd) and "version: 3.2.0," (Kata).
var shimVersion = regexp.MustCompile(`(?i)\bversion:\s+"?([^\s",]+)`)

// shimID matches `id: "io.containerd.kata.v2",` (Kata).
var shimID = regexp.MustCompile(`(?i)\bid:\s+"?([^\s",]+)`)

func askShimVersion(ctx context.Context, path, flag string) (name, version string, err error) {
	out, err := run(ctx, path, flag)
	if err != nil {
		return "", "", unlessExit(ctx, err)
	}
	m := shimVersion.FindSubmatch(out)
	if m == nil {
		return "", "", nil
	}
	if id := shimID.FindSubmatch(out); id != nil {
		name = string(id[1])
	}
	return name, string(m[1]), nil
}

// unlessExit drops the error of a program that ran and failed: the program does not support the
// flag, which is a result. A program that cannot run, or hangs, gave no result.
func unlessExit(ctx context.Context, err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil && !Transient(err) {
		return nil
	}
	return err
}
