package engine

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/berth-cri/berth/pkg/handler"
)

// layout is where the engine has what: root is kept over reboots, state is not.
type layout struct{ root, state string }

func newLayout(root, state string) (layout, error) {
	for _, d := range []struct{ name, path string }{{"root", root}, {"state", state}} {
		if !filepath.IsAbs(d.path) {
			return layout{}, fmt.Errorf("engine: %s %q must be an absolute path", d.name, d.path)
		}
	}
	return layout{root: root, state: state}, nil
}

func (l layout) pluginLinks() string           { return filepath.Join(l.state, "nri-plugins") }
func (l layout) sandboxDir(id string) string   { return filepath.Join(l.state, "sandboxes", id) }
func (l layout) containerDir(id string) string { return filepath.Join(l.state, "containers", id) }

// nsDir has the namespaces of a sandbox.
func (l layout) nsDir(id string) string { return filepath.Join(l.sandboxDir(id), "ns") }

// processBundle ends with the id: shims find their tasks by it.
func (l layout) processBundle(id string) string {
	return filepath.Join(l.sandboxDir(id), "bundle", id)
}

func (l layout) filesOf(id string) sandboxFiles {
	dir := l.sandboxDir(id)
	return sandboxFiles{
		hosts: filepath.Join(dir, "hosts"), hostname: filepath.Join(dir, "hostname"),
		resolvConf: filepath.Join(dir, "resolv.conf"), shm: filepath.Join(dir, "shm"),
	}
}

// stdio are the FIFOs of a container's first process.
func (l layout) stdio(c *container) stdio {
	dir := filepath.Join(l.containerDir(c.ID()), "io")
	s := stdio{stdout: filepath.Join(dir, "stdout")}
	if !c.config().GetTty() {
		s.stderr = filepath.Join(dir, "stderr")
	}
	if c.config().GetStdin() {
		s.stdin = filepath.Join(dir, "stdin")
	}
	return s
}

// scratchDir is there while a root filesystem or a volume of a pod with a user
// namespace is being mounted.
func (l layout) scratchDir(id string) string { return filepath.Join(l.containerDir(id), "scratch") }

func (l layout) volumesDir(id string) string { return filepath.Join(l.containerDir(id), "volumes") }

func (l layout) volumeDir(id string, i int) string {
	return filepath.Join(l.volumesDir(id), strconv.Itoa(i))
}

// mappedDir holds volumes that are mapped for a runtime that cannot.
func (l layout) mappedDir(id string) string { return filepath.Join(l.containerDir(id), "mapped") }

// checkpointsDir holds what checkpoints are made of. A directory in it says that
// the container of that name may stand still.
func (l layout) checkpointsDir(id string) string { return filepath.Join(l.root, "checkpoints", id) }

// runtimeRoot is where the runtime keeps its state for that handler.
func (l layout) runtimeRoot(d *handler.Definition) string {
	if d.Root != "" {
		return d.Root
	}
	return filepath.Join(l.state, "runtimes", d.Name)
}
