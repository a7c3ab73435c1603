package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/coredump/coredumptest"
)

// asBerth makes the test binary run berth.
const asBerth = "BERTH_TEST_AS_BERTH"

func TestMain(m *testing.M) {
	if os.Getenv(asBerth) != "" {
		main() // ends the process
	}
	m.Run()
}

// TestServeProcess runs berth as a separate process with the real engine.
func TestServeProcess(t *testing.T) {
	cmd, dir, socket := served(t)
	out := &journal{}
	cmd.Stdout, cmd.Stderr = out, out
	test.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
	})

	answers(t, socket)
	// Users of pods need to traverse this directory, whatever the umask is.
	if st, err := os.Stat(filepath.Join(dir, "state", "sandboxes")); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("the mode of the state directory is %v (%v)", st.Mode(), err)
	}
	test.Must(t, cmd.Process.Signal(unix.SIGHUP))
	test.Eventually(t, "SIGHUP causes a reload", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("SIGHUP ended the daemon: %v\n%s", err, out)
		default:
		}
		return strings.Contains(out.String(), "Configuration reloaded")
	})
	answers(t, socket)
	test.Must(t, cmd.Process.Signal(unix.SIGTERM))
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("SIGTERM does not end the daemon")
	}
	test.ErrorIs(t, test.Err(os.Lstat(socket)), fs.ErrNotExist, "the socket after the exit")
	for _, want := range []string{"Serving the CRI", "Configuration reloaded", "Stopped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, out)
		}
	}
}

// served returns a command that runs berth at socket, with the umask 077.
func served(t *testing.T) (cmd *exec.Cmd, dir, socket string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"runc", "berth-shim", "berth-pause"} {
		test.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho runc version 1.5.0\n"), 0o700))
	}
	file := filepath.Join(dir, "config.toml")
	test.Must(t, os.WriteFile(file, []byte("[runtimes.runc]\nruntime_path = \""+dir+"/runc\"\n"), 0o600))
	t.Setenv(hostfiles.SearchPathEnv, dir)
	socket = filepath.Join(dir, "cri.sock")
	cmd = exec.Command("/bin/sh", "-c", `umask 077; exec "$0" "$@"`, os.Args[0], "serve", "-c", file, "--vendor-dir", filepath.Join(dir, "vendor"), "--socket", socket,
		"--set", "engine.root="+filepath.Join(dir, "root"), "--set", "engine.state="+filepath.Join(dir, "state"),
		"--set", "cni.cache_dir="+filepath.Join(dir, "cni"), "--set", "cni.conf_dir="+filepath.Join(dir, "net.d"))
	cmd.Env = append(os.Environ(), asBerth+"=1")
	return cmd, dir, socket
}

// TestServeLeavesNoCore: a daemon that crashes leaves no core dump, which could contain
// credentials of registries.
func TestServeLeavesNoCore(t *testing.T) {
	coredumptest.Need(t)
	cmd, dir, socket := served(t)
	cmd.Env, cmd.Dir = append(cmd.Env, coredumptest.Environment), dir
	test.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	answers(t, socket)
	if coredumptest.Crashed(t, cmd) {
		t.Error("the daemon left a core dump")
	}
}

// journal collects the output of a process.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// answers waits until the daemon responds.
func answers(t *testing.T, socket string) {
	t.Helper()
	conn := test.Value(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	test.Eventually(t, "the daemon responds", func() bool {
		_, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
}
