// Package criufiles reads and writes the files that CRIU shares with its callers: configuration,
// the names of pipes in images, and logs.
package criufiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	runcapi "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

const (
	// criuConfigDir has the administrator's file <runtime>.conf for CRIU. berth's configuration is
	// used in its place, and includes it.
	criuConfigDir = "/etc/criu"
	// ConfigEnv is the variable with the path of a file that CRIU reads when it starts.
	ConfigEnv = "CRIU_CONFIG_FILE"
	// stdioFile is beside CRIU's images. It contains the names that the container's pipes have in
	// the images; a restore replaces these pipes by new ones.
	stdioFile = "stdio.json"
	// configAnnotation names, in a container's configuration, a file that the runtime passes on to
	// CRIU. crun gets no such file: see supervised.CRIUConfig.
	configAnnotation = "org.criu.config"
	// maxStdioFile bounds stdioFile, which is untrusted.
	maxStdioFile = 4096
	// emptyImage is the size of a CRIU image without entries: two magic numbers.
	emptyImage = 8
)

// Config returns CRIU's configuration for a container of a foreign shim, which owns the container's
// pipes. It is for a restore from images, or for a checkpoint if images is empty.
func Config(runtime, bundleDir, images string, openTCP bool) ([]byte, error) {
	system, err := systemConfig(runtime)
	if err != nil {
		return nil, err
	}
	if images == "" {
		return dumpConfig(system, nil, openTCP), nil
	}
	pipes, err := readPipes(images)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return append(restoreConfig(system, joinedNamespaces(bundle.Read(bundleDir))), pipesConfig(pipes)...), nil
}

// joinedNamespaces returns the namespaces of the pod that CRIU must join by its configuration;
// runtimes pass on the others.
func joinedNamespaces(bundle bundle.Facts) map[string]string {
	joined := map[string]string{}
	for _, n := range bundle.Linux.Namespaces {
		if n.Path != "" && (n.Type == "uts" || n.Type == "ipc") {
			joined[n.Type] = n.Path
		}
	}
	return joined
}

// systemConfig returns the administrator's CRIU configuration for a runtime.
func systemConfig(runtime string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(criuConfigDir, filepath.Base(runtime)+".conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read CRIU configuration: %w", err)
	}
	return text, nil
}

// WriteDumpConfig writes CRIU's configuration for a checkpoint into a file, which the caller
// removes. pipes are for WritePipes.
func WriteDumpConfig(j *journal.Task, openTCP bool) (file string, pipes map[int]string, err error) {
	if pipes, err = pipesOf(j); err != nil {
		return "", nil, err
	}
	system, err := systemConfig(j.Options.Runtime)
	if err != nil {
		return "", nil, err
	}
	text, err := onceConfig(dumpConfig(system, pipes, openTCP))
	if err != nil {
		return "", nil, err
	}
	file = filepath.Join(j.Bundle, ConfigFile)
	return file, pipes, atomicfile.Write(file, text, 0o600, atomicfile.Relaxed)
}

// pipesOf returns CRIU's names of the container's pipes, by descriptor: the pipes are files of this
// host, and CRIU would look for them in the container. A container with a terminal has none.
func pipesOf(j *journal.Task) (map[int]string, error) {
	found := map[int]string{}
	if j.Terminal {
		return found, nil
	}
	for fd, pipe := range []string{j.Stdin, j.Stdout, j.Stderr} {
		if pipe == "" {
			continue
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, pipe, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
			return nil, fmt.Errorf("statx %s: %w", pipe, err)
		}
		found[fd] = fmt.Sprintf("file[%x:%x]", st.Mnt_id, st.Ino)
	}
	return found, nil
}

// onceConfig returns the text for the file that ConfigEnv names: the text of the administrator's
// file in this variable, and ours. CRIU reads this file once. CRIU before 4.2 reads the file in
// configAnnotation twice, and would look for each pipe a second time.
func onceConfig(ours []byte) ([]byte, error) {
	var theirs []byte
	if file := os.Getenv(ConfigEnv); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the file in %s: %w", ConfigEnv, err)
		}
		theirs = slices.Concat(text, []byte{'\n'})
	}
	return append(theirs, ours...), nil
}

// dumpConfig returns the configuration for a checkpoint, in addition to the runtime's arguments.
// Unless openTCP is set, connections are saved as closed.
func dumpConfig(system []byte, pipes map[int]string, openTCP bool) []byte {
	out := bytes.NewBuffer(slices.Clone(system))
	for _, fd := range slices.Sorted(maps.Keys(pipes)) {
		fmt.Fprintf(out, "\nexternal %s", pipes[fd])
	}
	if !openTCP {
		out.WriteString("\ntcp-close")
	}
	return append(out.Bytes(), '\n')
}

// restoreConfig returns the configuration for a restore. Connections are closed, because the new
// pod has another address. The namespaces to join are given by kind.
func restoreConfig(system []byte, namespaces map[string]string) []byte {
	out := bytes.NewBuffer(slices.Clone(system))
	out.WriteString("\ntcp-close\next-unix-sk\nfile-locks")
	for _, kind := range slices.Sorted(maps.Keys(namespaces)) {
		fmt.Fprintf(out, "\njoin-ns %s:%s", kind, namespaces[kind])
	}
	return append(out.Bytes(), '\n')
}

// pipesConfig maps pipes, by their names in the images, to CRIU's own descriptors.
func pipesConfig(pipes map[int]string) []byte {
	var out []byte
	for _, fd := range slices.Sorted(maps.Keys(pipes)) {
		out = fmt.Appendf(out, "inherit-fd fd[%d]:%s\n", fd, pipes[fd])
	}
	return out
}

// WritePipes writes the names of pipes beside CRIU's images.
func WritePipes(images string, pipes map[int]string) error {
	text, err := json.Marshal(pipes)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(images, stdioFile), text, 0o600)
}

// criuFile matches the names that pipesOf creates: no other text of stdioFile may become a line of
// configuration.
var criuFile = regexp.MustCompile(`^file\[[0-9a-f]{1,16}:[0-9a-f]{1,16}\]$`)

// readPipes returns what WritePipes wrote; nil for images without stdioFile.
func readPipes(images string) (map[int]string, error) {
	path := filepath.Join(images, stdioFile)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxStdioFile {
		return nil, fmt.Errorf("%s of the checkpoint is not a regular file of at most %d bytes", stdioFile, maxStdioFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var pipes map[int]string
	if err := json.Unmarshal(text, &pipes); err != nil {
		return nil, fmt.Errorf("%s of the checkpoint: %w", stdioFile, err)
	}
	for fd, name := range pipes {
		if fd < 0 || fd > 2 || !criuFile.MatchString(name) {
			return nil, fmt.Errorf("%s of the checkpoint has the pipe %d: %q", stdioFile, fd, name)
		}
	}
	return pipes, nil
}

// HasSysVIPC reports whether a directory of CRIU's images contains System V objects. They belong to
// the pod, but CRIU can restore them only into a namespace that it creates for them.
func HasSysVIPC(images string) (bool, error) {
	files, err := os.ReadDir(images)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // CRIU reports the missing directory
	}
	if err != nil {
		return false, err
	}
	for _, file := range files {
		if !isSysVIPC(file.Name()) {
			continue
		}
		info, err := file.Info()
		if err != nil {
			return false, err
		}
		if info.Size() > emptyImage {
			return true, nil
		}
	}
	return false, nil
}

// isSysVIPC reports whether a file is an image of System V objects: CRIU writes an image of each
// kind, even without objects.
func isSysVIPC(file string) bool {
	return slices.ContainsFunc([]string{"shm", "msg", "sem"}, func(kind string) bool {
		return strings.HasPrefix(file, "ipcns-"+kind+"-") && strings.HasSuffix(file, ".img")
	})
}

// restoreArgs returns the runtime's arguments for a restore. If configured is not set, the runtime
// is crun: it joins the pod's namespaces itself, but needs the flag --tcp-close, which runc does
// not have.
func restoreArgs(images, work string, terminal, configured bool) []string {
	args := []string{"restore", "--image-path", images, "--work-path", work, "--ext-unix-sk", "--file-locks"}
	if terminal {
		args = append(args, "--shell-job")
	}
	if !configured {
		args = append(args, "--tcp-close")
	}
	return args
}

// Restore manages the files that CRIU needs while a task is restored.
type Restore struct {
	Task *journal.Task
	// Work is the directory of CRIU's log and temporary files.
	Work string
}

// config is the path of the CRIU configuration that the container's annotation names.
func (r Restore) config() string { return filepath.Join(r.Task.Bundle, ConfigFile) }

// once is the path of the configuration that CRIU may read only once.
func (r Restore) once() string { return filepath.Join(r.Work, "once.conf") }

// Prepare writes the files, and returns the arguments and the environment of the runtime. Remove
// removes the files.
func (r Restore) Prepare() (args, environment []string, err error) {
	j := r.Task
	pipes, err := readPipes(j.Checkpoint)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if len(pipes) > 0 && j.Terminal {
		return nil, nil, fmt.Errorf("the checkpoint is of a container without a terminal: %w", errdefs.ErrInvalidArgument)
	}
	if pipes[0] != "" && j.Stdin == "" {
		return nil, nil, fmt.Errorf("the checkpoint is of a container with stdin; set stdin in the container's configuration, too: %w", errdefs.ErrInvalidArgument)
	}
	system, err := systemConfig(j.Options.Runtime)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(r.Work, 0o700); err != nil {
		return nil, nil, err
	}
	once, err := onceConfig(pipesConfig(pipes))
	if err != nil {
		return nil, nil, err
	}
	facts := bundle.Read(j.Bundle)
	if err := errors.Join(
		os.WriteFile(r.config(), restoreConfig(system, joinedNamespaces(facts)), 0o600),
		os.WriteFile(r.once(), once, 0o600),
	); err != nil {
		return nil, nil, err
	}
	configured := facts.Annotations[configAnnotation] == r.config()
	return restoreArgs(j.Checkpoint, r.Work, j.Terminal, configured), []string{ConfigEnv + "=" + r.once()}, nil
}

// Remove removes the files that only CRIU needed.
func (r Restore) Remove() error {
	if err := errors.Join(os.RemoveAll(r.config()), mountpoint.UnmountBelow(r.Work)); err != nil {
		return err
	}
	return os.RemoveAll(r.Work)
}

// ConfigFile is the file in a bundle that the annotation org.criu.config of the container names. It
// exists while a checkpoint or restore runs.
const ConfigFile = "criu.conf"

// CheckpointArgs returns the runtime's arguments for a checkpoint after which the container keeps
// running.
func CheckpointArgs(id, images string, o *runcapi.CheckpointOptions) []string {
	args := []string{"checkpoint", "--leave-running", "--image-path", images}
	if o.GetWorkPath() != "" {
		args = append(args, "--work-path", o.GetWorkPath())
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"--tcp-established", o.GetOpenTcp()},
		{"--ext-unix-sk", o.GetExternalUnixSockets()},
		{"--shell-job", o.GetTerminal()},
		{"--file-locks", o.GetFileLocks()},
	} {
		if f.set {
			args = append(args, f.name)
		}
	}
	return append(args, id)
}

// ExplainCheckpoint adds to err the error from CRIU's log in workPath: runtimes and shims report
// only that the checkpoint failed.
func ExplainCheckpoint(err error, workPath string) error {
	return explainCRIU(err, filepath.Join(workPath, "dump.log"))
}

// ExplainRestore is ExplainCheckpoint for a restore.
func ExplainRestore(err error, workPath string) error {
	return explainCRIU(err, filepath.Join(workPath, "restore.log"))
}

func explainCRIU(err error, logFile string) error {
	if err == nil {
		return nil
	}
	if reason := errorsOf(runtimecall.ReadTail(logFile)); reason != "" {
		return fmt.Errorf("%w: CRIU says: %s", err, reason)
	}
	return err
}

// errorsOf returns the first error in CRIU's log that stopped CRIU, or the last passing error. It
// skips the errors that only report the failure.
func errorsOf(log []byte) string {
	var last string
	for line := range bytes.Lines(log) {
		_, text, isError := strings.Cut(string(line), " Error (")
		if !isError || strings.Contains(text, "Dumping FAILED") || strings.Contains(text, "Restoring FAILED") {
			continue
		}
		if _, message, ok := strings.Cut(text, "): "); ok {
			text = message
		}
		// Later errors follow from this one.
		if last = strings.TrimSpace(text); !isPassing(last) {
			break
		}
	}
	return runtimecall.Shorten(last)
}

// isPassing reports whether an error is passing: CRIU continues after it, or it only reports that
// another CRIU process is gone.
func isPassing(message string) bool {
	return slices.ContainsFunc([]string{"rlimit:", "cg: cgroupd:"}, func(words string) bool { return strings.HasPrefix(message, words) })
}
