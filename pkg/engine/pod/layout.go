package pod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/handler"
)

// Layout has the engine's paths: Root survives reboots, State does not.
type Layout struct{ Root, State string }

// PluginLinks is the directory of links to NRI plugins.
func (l Layout) PluginLinks() string { return filepath.Join(l.State, "nri-plugins") }

// SandboxDir has a sandbox's files until it is removed.
func (l Layout) SandboxDir(id string) string { return filepath.Join(l.State, "sandboxes", id) }

// ContainerDir is a container's bundle.
func (l Layout) ContainerDir(id string) string { return filepath.Join(l.State, "containers", id) }

// NsDir has a sandbox's namespaces.
func (l Layout) NsDir(id string) string { return filepath.Join(l.SandboxDir(id), "ns") }

// ProcessBundle is the sandbox process's bundle. Its name is the id, because shims find their tasks
// by it.
func (l Layout) ProcessBundle(id string) string {
	return filepath.Join(l.SandboxDir(id), "bundle", id)
}

// FilesOf are the files of a sandbox.
func (l Layout) FilesOf(id string) Files {
	dir := l.SandboxDir(id)
	return Files{
		Hosts: filepath.Join(dir, "hosts"), Hostname: filepath.Join(dir, "hostname"),
		ResolvConf: filepath.Join(dir, "resolv.conf"), Shm: filepath.Join(dir, "shm"),
	}
}

// Stdio are the FIFOs of a container's first process.
func (l Layout) Stdio(c *Container) Stdio {
	dir := filepath.Join(l.ContainerDir(c.ID()), "io")
	s := Stdio{Stdout: filepath.Join(dir, "stdout")}
	if !c.Config().GetTty() {
		s.Stderr = filepath.Join(dir, "stderr")
	}
	if c.Config().GetStdin() {
		s.Stdin = filepath.Join(dir, "stdin")
	}
	return s
}

// ScratchDir exists while a root filesystem or a volume of a pod with a user namespace is being
// mounted.
func (l Layout) ScratchDir(id string) string { return filepath.Join(l.ContainerDir(id), "scratch") }

// VolumesDir has a container's volumes.
func (l Layout) VolumesDir(id string) string { return filepath.Join(l.ContainerDir(id), "volumes") }

// VolumeDir is the volume with that number.
func (l Layout) VolumeDir(id string, i int) string {
	return filepath.Join(l.VolumesDir(id), strconv.Itoa(i))
}

// MappedDir has volumes that are mapped for a runtime without support for mapped mounts.
func (l Layout) MappedDir(id string) string { return filepath.Join(l.ContainerDir(id), "mapped") }

// FrozenDir has a directory for each container that a checkpoint may have frozen.
func (l Layout) FrozenDir(id string) string { return filepath.Join(l.Root, "frozen", id) }

// CheckpointsDir has the files of checkpoint archives that are being created. Versions of berth
// without FrozenDir also marked a frozen container by it.
func (l Layout) CheckpointsDir(id string) string { return filepath.Join(l.Root, "checkpoints", id) }

// RestoreDir has the memory that a restored container continues from, until it is started.
func (l Layout) RestoreDir(id string) string { return filepath.Join(l.Root, "restores", id) }

// PodCheckpointNotesDir has the paths of sandbox checkpoints that are being written.
func (l Layout) PodCheckpointNotesDir() string { return filepath.Join(l.Root, "pod-checkpoint-notes") }

// RuntimeRoot is the state directory of the handler's runtime.
func (l Layout) RuntimeRoot(d *handler.Definition) string {
	if d.Root != "" {
		return d.Root
	}
	return filepath.Join(l.State, "runtimes", d.Name)
}

// FailureLog is where supervisors keep the output of a handler's runtime that failed.
func (l Layout) FailureLog(handler string) string { return filepath.Join(l.State, "failures", handler) }

// SpecSandbox has the facts about s that specs depend on.
func (l Layout) SpecSandbox(s *Sandbox) ocispec.Sandbox {
	f, st, plan := l.FilesOf(s.ID()), s.Status(), s.Spec().Plan
	facts := ocispec.Sandbox{
		ID: s.ID(), Config: s.Config(), Definition: s.Spec().Definition, ShowsResolver: s.OwnShim(),
		NetNS: st.Namespaces.Net, IPCNS: st.Namespaces.IPC, UTSNS: st.Namespaces.UTS, UserNS: st.Namespaces.User,
		PID: st.PID, Hostname: plan.Hostname, ProcessLabel: s.Spec().ProcessLabel, MountLabel: s.Spec().MountLabel,
		HostsPath: f.Hosts, HostnamePath: f.Hostname, ResolvConfPath: f.ResolvConf,
	}
	if plan.IPC {
		facts.ShmPath = f.Shm
	}
	return facts
}

// Stdio are the paths of a process's FIFOs; empty for those that do not exist.
type Stdio struct{ Stdin, Stdout, Stderr string }

// Paths are the existing FIFOs.
func (s Stdio) Paths() []string {
	var all []string
	for _, p := range []string{s.Stdin, s.Stdout, s.Stderr} {
		if p != "" {
			all = append(all, p)
		}
	}
	return all
}

// Files are the files of a sandbox that its containers mount.
type Files struct{ Hosts, Hostname, ResolvConf, Shm string }

// WriteSpec writes the spec of a bundle.
func WriteSpec(bundle string, spec *specs.Spec) error {
	return atomicfile.WriteJSON(filepath.Join(bundle, "config.json"), spec, atomicfile.Relaxed)
}

// ReadSpec reads the spec of a container's bundle.
func ReadSpec(bundle string) (*specs.Spec, error) {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	spec.Linux = cmp.Or(spec.Linux, &specs.Linux{})
	spec.Linux.Resources = cmp.Or(spec.Linux.Resources, &specs.LinuxResources{})
	return spec, nil
}
