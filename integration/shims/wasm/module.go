package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// engine is the name of the runtime in the shim's version.
const engine = "wazero"

// moduleCommand is the first argument of the shim if it is to run a module.
const moduleCommand = "module"

// The paths of the module, its compiled form and the shim in a container.
const (
	insideModule   = "/.wasm-module"
	insideCompiled = "/.wasm-compiled"
	insideShim     = "/.wasm-shim"
)

// compile is a compiler with wazero. The compiled form is a tar archive of wazero's cache.
func compile(ctx context.Context, module []byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "wazero-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cache.Close(ctx) }()
	runtime := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCompilationCache(cache))
	defer func() { _ = runtime.Close(ctx) }()
	if _, err := runtime.CompileModule(ctx, module); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err = archive.Write(body)
		return err
	})
	return b.Bytes(), errors.Join(err, archive.Close())
}

// unpackCompiled unpacks the archive of compile.
func unpackCompiled(compiled []byte, dir string) error {
	archive := tar.NewReader(bytes.NewReader(compiled))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(h.Name) {
			return fmt.Errorf("%q is not a name in a cache", h.Name)
		}
		path := filepath.Join(dir, h.Name)
		body, err := io.ReadAll(archive)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, body, 0o644)
		}
		if err != nil {
			return err
		}
	}
}

// runModule runs a module in its container and returns the exit status. args are the module's
// arguments, beginning with its name: containerd-shim-wasm/src/sandbox/context.rs.
func runModule(args []string) int {
	ctx := context.Background()
	// The first process of a container ignores signals that it does not handle.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		if s, ok := (<-asked).(syscall.Signal); ok {
			os.Exit(128 + int(s))
		}
	}()
	status, err := run(ctx, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 137 // executor.rs, exec
	}
	return status
}

func run(ctx context.Context, args []string) (int, error) {
	module, err := os.ReadFile(insideModule)
	if err != nil {
		return 0, err
	}
	config := wazero.NewRuntimeConfig()
	if _, err := os.Stat(insideCompiled); err == nil {
		cache, err := wazero.NewCompilationCacheWithDir(insideCompiled)
		if err != nil {
			return 0, err
		}
		config = config.WithCompilationCache(cache)
	}
	runtime := wazero.NewRuntimeWithConfig(ctx, config)
	defer func() { _ = runtime.Close(ctx) }()
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, runtime); err != nil {
		return 0, err
	}
	compiled, err := runtime.CompileModule(ctx, module)
	if err != nil {
		return 0, err
	}
	function := "_start"
	if len(args) > 0 {
		if _, named, ok := strings.Cut(args[0], "#"); ok {
			function = named
		}
	}
	how := wazero.NewModuleConfig().WithArgs(args...).WithStdin(os.Stdin).WithStdout(os.Stdout).WithStderr(os.Stderr).
		WithFSConfig(wazero.NewFSConfig().WithDirMount("/", "/")).WithStartFunctions(function).
		WithSysWalltime().WithSysNanotime().WithSysNanosleep()
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		how = how.WithEnv(name, value)
	}
	_, err = runtime.InstantiateModule(ctx, compiled, how)
	var exit *sys.ExitError
	if errors.As(err, &exit) {
		return int(exit.ExitCode()), nil
	}
	return 0, err
}
