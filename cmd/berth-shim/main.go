// Command berth-shim is the supervisor of pods on OCI runtimes. The daemon starts one for each
// supervisor key, that is for a handler's settings and binaries, or for a pod:
//
//	berth-shim serve --dir <state>/supervisors/<key>
//
// It inherits a listening unix socket as descriptor 3 and, if it replaces a supervisor that died,
// the descriptors in BERTH_SHIM_INHERIT. It outlives the daemon and exits on request, or when it
// has no tasks and no daemon returns. Foreign shims that publish events by running a program run
// this one:
//
//	berth-shim --address <socket> publish --topic <topic> --namespace <namespace>
//
// The Makefile builds it with the tag no_grpc, which makes it smaller: it serves only ttrpc.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/coredump"
	"github.com/berth-cri/berth/pkg/engine/supervisor"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// version is set by the linker.
var version = "dev"

const (
	socketFD = 3
	// gcPercent is low: a supervisor is mostly idle, and memory matters more than speed.
	gcPercent = 25
	maxProcs  = 2
)

func main() {
	debug.SetGCPercent(gcPercent)
	runtime.GOMAXPROCS(min(maxProcs, runtime.NumCPU()))
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "berth-shim:", err)
		log.L.WithError(err).Error("Failed to run berth-shim")
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && (args[0] == "--version" || args[0] == "version") {
		fmt.Println("berth-shim", version)
		return nil
	}
	if publishes(args) {
		return publish(args, os.Stdin)
	}
	if len(args) == 0 || args[0] != "serve" {
		return errors.New("usage: berth-shim serve --dir <directory>, " + publishUsage + ", or berth-shim version")
	}
	flags := flag.NewFlagSet("berth-shim serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "directory of the supervisor's journals and log")
	level := flags.String("log-level", "info", "trace, debug, info, warn or error")
	patience := flags.Duration("patience", supervisor.DefaultPatience, "how long to wait for a daemon while no task exists")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if !filepath.IsAbs(*dir) || flags.NArg() > 0 {
		return fmt.Errorf("--dir %q must be an absolute path; no other arguments are allowed", *dir)
	}
	return serve(*dir, *level, *patience)
}

func serve(dir, level string, patience time.Duration) error {
	if err := coredump.Forbid(); err != nil { // memory may hold data of pods
		return err
	}
	if err := logTo(filepath.Join(dir, "log"), level); err != nil {
		return err
	}
	detach()
	inherited, err := inheritance()
	if err != nil {
		return err
	}
	listener, err := socket()
	if err != nil {
		return err
	}
	return supervisor.Serve(context.Background(), supervisor.Config{
		Dir: dir, Listener: listener, Version: version, Inherited: inherited, Patience: patience,
	})
}

// detach isolates this process from the exit of its parent.
func detach() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	// Setsid fails if this process already leads a session.
	_, _ = unix.Setsid()
	_ = os.Chdir("/")
}

// socket returns the listening socket inherited at the start.
func socket() (net.Listener, error) {
	unix.CloseOnExec(socketFD)
	f := os.NewFile(socketFD, "socket")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d must be a listening unix socket: %w", socketFD, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		// The daemon created the socket and removes it.
		u.SetUnlinkOnClose(false)
	}
	return l, nil
}

func inheritance() (map[string]journal.Inherited, error) {
	text := os.Getenv(journal.InheritEnv)
	_ = os.Unsetenv(journal.InheritEnv)
	if text == "" {
		return nil, nil
	}
	var m map[string]journal.Inherited
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return nil, fmt.Errorf("%s: %w", journal.InheritEnv, err)
	}
	return m, nil
}

func logTo(path, level string) error {
	l, err := logrus.ParseLevel(level)
	if err != nil {
		return err
	}
	w, err := openBoundedLog(path, maxLogSize)
	if err != nil {
		return err
	}
	// After a rotation, crash traces of the Go runtime and stderr must go into the new log file.
	// SetCrashOutput duplicates the file's descriptor.
	w.begun = func(f *os.File) {
		_ = debug.SetCrashOutput(f, debug.CrashOptions{})
		_ = unix.Dup3(int(f.Fd()), unix.Stderr, 0) //nolint:gosec // a descriptor
	}
	log.L.Logger.SetLevel(l)
	log.L.Logger.SetFormatter(&logrus.JSONFormatter{TimestampFormat: log.RFC3339NanoFixed})
	log.L.Logger.SetOutput(w)
	return debug.SetCrashOutput(w.file, debug.CrashOptions{})
}
