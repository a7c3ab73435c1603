package binaries

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/keep"
)

// tools are copies of the engine's own programs, below the root directory. The path of a copy
// contains the hash of its content. When a package upgrade replaces the installed programs, the
// supervisor of a live pod still restarts from its own copy. The collector removes unused copies.
type tools struct {
	dir string
	// NoExec is set if programs in dir cannot be executed. Then Supervisor is the original.
	NoExec         bool
	Supervisor     string
	SupervisorHash string
	// PauseRoot is a root filesystem. It contains berth-pause under all its names, and empty mount
	// points.
	PauseRoot string
}

// newTools copies the programs unless copies with the same content exist.
func newTools(root, supervisor, pause string, entry *log.Entry) (tools, error) {
	t := tools{dir: filepath.Join(root, "tools")}
	err := os.MkdirAll(t.dir, 0o755)
	if err == nil {
		t.NoExec, err = keep.NoExec(t.dir)
	}
	if err != nil {
		return t, fmt.Errorf("engine: directory of tools: %w", err)
	}
	if t.Supervisor, t.SupervisorHash, err = keepProgram(supervisor, t.dir, shimPrefix); err != nil {
		return t, fmt.Errorf("engine: supervisor binary: %w", err)
	}
	kept, hash, err := keepProgram(pause, t.dir, pausePrefix)
	if err != nil {
		return t, fmt.Errorf("engine: sandbox process binary: %w", err)
	}
	t.PauseRoot = filepath.Join(t.dir, pauseRootPrefix+hash[:16])
	if t.NoExec {
		t.Supervisor = supervisor
		entry.WithField("dir", t.dir).
			Warn("Root directory is mounted noexec; running pods use the installed binaries, which an upgrade replaces. Mount it exec, or move engine.root")
	}
	return t, newPauseRoot(t.PauseRoot, kept)
}

func keepProgram(path, dir, prefix string) (kept, hash string, err error) {
	in, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", "", err
	}
	hash = hex.EncodeToString(h.Sum(nil))
	kept = filepath.Join(dir, prefix+hash[:16])
	if _, err := os.Stat(kept); err == nil {
		return kept, hash, nil
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", "", err
	}
	return kept, hash, copyProgram(in, kept)
}

func copyProgram(in io.Reader, to string) error {
	dir, name := filepath.Split(to)
	return atomicfile.WriteBy(dir+newPrefix+name, to, 0o755, atomicfile.Durable, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}

// newPauseRoot makes the root filesystem of sandbox processes. The filesystem is mounted read-only,
// so every mount point of the runtimes must exist in it.
func newPauseRoot(dir, pause string) error {
	for _, d := range []string{"dev", "proc", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, f := range []string{"hosts", "hostname", "resolv.conf"} {
		if err := os.WriteFile(filepath.Join(dir, "etc", f), nil, 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{PauseName, ConnectName, LookName} {
		if err := linkProgram(pause, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// berth-pause has a role for each of these names: the process of a sandbox, a connection into a
// pod, or the probe of a self-check pod.
const (
	PauseName   = "pause"
	ConnectName = "connect"
	LookName    = "look"
)

func linkProgram(pause, to string) error {
	if err := os.Link(pause, to); err == nil || errors.Is(err, os.ErrExist) {
		return nil
	}
	in, err := os.Open(pause)
	if err != nil {
		return err
	}
	defer in.Close()
	return copyProgram(in, to)
}
