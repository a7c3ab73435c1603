// Package installer installs berth on a node that has another CRI daemon, switches the kubelet to
// berth, and undoes both.
//
// Every step changes what differs from the desired state, so that the next run repairs an
// interrupted one. A state file holds the facts that cannot be derived from the node: which
// directories are new and whether the kubelet is switched, both written before the change, and the
// last healthy version and files. Uninstall undoes the steps in reverse order.
//
// Paths are paths on the node. The node's root directory is mounted at Installer.Root, and a Host
// runs programs there.
package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/kubeletconf"
	"github.com/berth-cri/berth/pkg/nodefs"
)

// Host runs programs on the node.
type Host interface {
	// Run returns a program's stdout. If the program fails, the error has its stderr.
	Run(ctx context.Context, name string, args ...string) ([]byte, error)
}

// Cluster answers questions about the node.
type Cluster interface {
	// Serves returns nil if the node is Ready and its kubelet uses berth. If berth is false, the
	// kubelet must use another runtime.
	Serves(ctx context.Context, berth bool) error
}

// Backend queries other CRI daemons.
type Backend interface {
	// Ask queries the daemon at a socket of the node.
	Ask(ctx context.Context, endpoint string) (Beside, error)
}

// Installer works on one node.
type Installer struct {
	// Root is the mount point of the node's root directory.
	Root string
	// Payload is the directory with the programs and the unit to install.
	Payload string
	// Self is the path of this program, which is also installed for operators.
	Self    string
	Host    Host
	Cluster Cluster
	Backend Backend
	// patience bounds the waits for berth and for the other daemon.
	patience time.Duration
	// at is called at named places, where tests interrupt a run.
	at func(place string)
}

// New returns an Installer with the exported fields of i, all of which must be set.
func New(i Installer) *Installer {
	if i.at == nil {
		i.at = failpoint.Hit
	}
	i.patience = patience
	return &i
}

// Programs is the directory of the programs in use, on the node.
const Programs = current + "/bin"

// Paths on the node.
const (
	home       = "/opt/berth"
	current    = home + "/current"
	program    = Programs + "/berth"
	runtimes   = home + "/runtimes"
	unitFile   = "/etc/systemd/system/berth.service"
	wants      = "/etc/systemd/system/multi-user.target.wants/berth.service"
	configFile = "/etc/berth/config.toml"
	dropIns    = "/etc/berth/conf.d"
	extraFile  = dropIns + "/90-installer.toml"
)

func (i *Installer) root() nodefs.Root { return nodefs.Root(i.Root) }

type run struct {
	*Installer
	w  Wanted
	st *state
	// beside is the daemon that handlers forward to.
	beside Beside
}

// Install brings the node into the desired state. If a first installation fails, the node is
// restored; later installations roll back to the last healthy version and files.
func (i *Installer) Install(ctx context.Context, w Wanted) error {
	if err := w.Validate(); err != nil {
		return err
	}
	return i.locked(ctx, func(st *state) error {
		r := &run{Installer: i, w: w, st: st}
		if err := r.plan(ctx); err != nil {
			return err
		}
		err := r.install(ctx)
		if err != nil && ctx.Err() == nil && st.Healthy.Version == "" {
			log.G(ctx).WithError(err).Warn("Undoing a failed installation")
			return errors.Join(err, textOnly(i.uninstall(ctx, st)))
		}
		if err != nil {
			return err
		}
		return r.serveRuntimes(ctx) // a failed runtime does not undo the rest
	})
}

// plan finds obstacles before the node is changed. On a new node it then begins the state file.
func (r *run) plan(ctx context.Context) error {
	k, err := kubeletconf.Find(r.root())
	if err == nil && r.w.Kubelet {
		err = k.CheckMovable()
	}
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if r.beside, err = r.queryBackend(ctx, k); err != nil {
		return err
	}
	for _, rt := range r.w.Runtimes {
		if rt.Handler == r.beside.name() {
			return fmt.Errorf("runtime %q: berth gives this name to the handler that forwards to the other CRI daemon's default; choose another name", rt.Handler)
		}
	}
	if !r.st.fresh() {
		return nil
	}
	paths := append(nodefs.UnitPaths("berth"), home)
	for path := range configTexts(r.beside, r.w.Config) {
		paths = append(paths, path)
	}
	for _, rt := range r.w.Runtimes {
		paths = append(paths, rt.file())
	}
	for _, path := range paths {
		if r.root().ExistsAny(path) {
			return fmt.Errorf("%s exists, and is not this installer's: purge the package and remove %s, or keep both and move the kubelet by hand (docs/migration.md)", path, path)
		}
	}
	return r.st.begin("/etc/berth", dropIns, stateDirs[0], stateDirs[1])
}

func (r *run) install(ctx context.Context) error {
	if err := r.programs(ctx); err != nil {
		return fmt.Errorf("programs: %w", err)
	}
	if r.st.Kubelet != "" && !r.w.Kubelet {
		if err := r.switchBack(ctx, r.st); err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
	}
	healthy, err := r.start(ctx)
	if err != nil {
		return err
	}
	if r.w.Kubelet {
		if err := r.switchToBerth(ctx); err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
	}
	r.st.Healthy = healthy
	return r.st.save()
}

// Uninstall restores the node. While berth's own engine has pods, which no other daemon can manage,
// it returns ErrPods and makes berth forward new pods to the other daemon.
func (i *Installer) Uninstall(ctx context.Context) error {
	return i.locked(ctx, func(st *state) error {
		if st.fresh() {
			return st.remove()
		}
		return i.uninstall(ctx, st)
	})
}

func (i *Installer) uninstall(ctx context.Context, st *state) error {
	if err := i.checkRemoval(ctx, st); err != nil {
		if errors.Is(err, ErrPods) {
			err = errors.Join(err, i.forwardPods(ctx, st))
		}
		return err
	}
	if st.Kubelet != "" {
		if err := i.switchBack(ctx, st); err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
	}
	st.Healthy.Version = "" // a rollback is impossible from here on
	if err := st.save(); err != nil {
		return err
	}
	log.G(ctx).Info("Removing berth")
	if err := i.stop(ctx, st); err != nil {
		return err
	}
	if err := i.writeFiles(st, nil); err != nil {
		return err
	}
	if err := i.root().Remove(unitFile); err != nil {
		return err
	}
	if _, err := i.Host.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	i.at("installer.files.removed")
	if err := os.RemoveAll(i.root().Path(home)); err != nil {
		return err
	}
	i.at("installer.programs.removed")
	return st.remove()
}

// forwardPods forwards every handler to the other daemon, so that the engine gets no more pods.
func (i *Installer) forwardPods(ctx context.Context, st *state) error {
	if st.Healthy.Version == "" {
		return nil
	}
	if err := i.writeFiles(st, configTexts(st.Healthy.Beside, "")); err != nil {
		return err
	}
	if !i.active(ctx) {
		return nil // berth reads the files at its start
	}
	_, err := i.reload(ctx)
	return err
}

// locked runs f with the node's state and excludes other runs on the node. It locks a directory
// that every node has, so that no lock file remains.
func (i *Installer) locked(ctx context.Context, f func(*state) error) error {
	d, err := os.Open(i.root().Resolved("/var/lib"))
	if err != nil {
		return err
	}
	defer d.Close()
	waits := false
	err = wait.PollUntilContextCancel(ctx, pause, true, func(context.Context) (bool, error) {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return true, err
		}
		if !waits {
			log.G(ctx).Info("Waiting for another run on this node")
			waits = true
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("lock %s: %w", d.Name(), err)
	}
	st, err := readState(i.root())
	if err != nil {
		return err
	}
	return f(st)
}

// textOnly returns an error with only the text of err: ErrPods in a secondary error must not cause
// a retry.
func textOnly(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}

// pause is the time between two attempts.
const pause = 200 * time.Millisecond

// eventually repeats ask until it returns nil or ErrFinal, or until patience or ctx ends.
func eventually(ctx context.Context, patience time.Duration, ask func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil || errors.Is(err, ErrFinal) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}
