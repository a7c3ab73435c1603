package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/installer/kubelet"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// kubeletMove has the kubelet use berth, and looks whether the node is well with it.
type kubeletMove struct {
	root     nodefs.Root
	host     Host
	at       hook
	cluster  Cluster
	backend  Backend
	daemon   daemon
	patience time.Duration
}

func (m *kubeletMove) rescue() rescue { return rescue{m.root, m.host} }

// savedKubelet is what the way back needs.
type savedKubelet struct {
	Unit string `json:"unit"`
	// Endpoint is the one that the kubelet goes back to.
	Endpoint string `json:"endpoint"`
	// Files are as they were, Written as they are meanwhile, by path.
	Files   []nodefs.Original `json:"files"`
	Written map[string][]byte `json:"written"`
}

// kubeletPatience is how long a kubelet may take to be Ready again.
const kubeletPatience = 3 * time.Minute

func (*kubeletMove) name() string  { return kubeletStep }
func (*kubeletMove) input() string { return socket }
func (*kubeletMove) alone() bool   { return false }

func (m *kubeletMove) prepare(ctx context.Context, before []byte) ([]byte, error) {
	saved := savedKubelet{Written: map[string][]byte{}}
	if before != nil {
		if err := json.Unmarshal(before, &saved); err != nil {
			return nil, err
		}
	}
	// After the move, a missing right would be a kubelet that does not serve.
	if err := eventually(ctx, m.patience, func() error { return m.cluster.MayAsk(ctx) }); err != nil {
		return nil, err
	}
	k, changes, err := m.plan()
	if err != nil {
		return nil, err
	}
	saved.Unit = k.Unit
	if now := k.Endpoint(); saved.Endpoint == "" || !kubelet.IsBerth(now) {
		saved.Endpoint = kubelet.AsURL(now)
	}
	for _, c := range changes {
		o, err := m.root.Snapshot(c.Path)
		if err != nil {
			return nil, err
		}
		if o.Absent || o.Link != "" {
			return nil, fmt.Errorf("%s is not a regular file: set the kubelet's endpoint to %s there by hand", c.Path, socket)
		}
		saved.Files = saved.add(o)
		saved.Written[c.Path] = []byte(c.Text)
	}
	return json.Marshal(saved)
}

// plan is what files must say, as they are now.
func (m *kubeletMove) plan() (kubelet.Kubelet, []kubelet.Change, error) {
	k, err := kubelet.Restartable(m.root)
	if err != nil {
		return k, nil, err
	}
	changes, err := k.Moved(socket)
	return k, changes, err
}

// add is the files with one as it is now. One that was written before, and edited since, goes
// back to that edit.
func (s savedKubelet) add(now nodefs.Original) []nodefs.Original {
	n := slices.IndexFunc(s.Files, func(o nodefs.Original) bool { return o.Path == now.Path })
	if n < 0 {
		return append(s.Files, now)
	}
	now.Content = s.reverted(s.Files[n], now.Content)
	s.Files[n] = now
	return s.Files
}

// reverted is the text that a file gets on the way back.
func (s savedKubelet) reverted(o nodefs.Original, now []byte) []byte {
	return []byte(kubelet.Reverted(string(now), string(o.Content), string(s.Written[o.Path]), socket))
}

// holds implements lasting: somebody may have led the kubelet elsewhere.
func (m *kubeletMove) holds(context.Context, []byte) error {
	k, err := kubelet.Find(m.root)
	if err == nil && !kubelet.IsBerth(k.Endpoint()) {
		err = fmt.Errorf("the kubelet is led to %s", k.Endpoint())
	}
	return err
}

func (m *kubeletMove) do(ctx context.Context, text []byte) error {
	var saved savedKubelet
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if err := m.rescue().arm(ctx); err != nil {
		return err
	}
	m.at("installer.kubelet.armed")
	_, changes, err := m.plan()
	if err != nil {
		return err
	}
	for n, c := range changes {
		if n == 1 {
			m.at("installer.kubelet.half")
		}
		o := slices.IndexFunc(saved.Files, func(o nodefs.Original) bool { return o.Path == c.Path })
		if o < 0 {
			return fmt.Errorf("%s has changed meanwhile: try again", c.Path)
		}
		if err := m.root.Put(c.Path, []byte(c.Text), saved.Files[o].Mode); err != nil {
			return err
		}
		if err := os.Chown(m.root.Path(c.Path), saved.Files[o].UID, saved.Files[o].GID); err != nil {
			return err
		}
	}
	m.at("installer.kubelet.written")
	if err := m.restart(ctx, saved.Unit); err != nil {
		return err
	}
	m.at("installer.kubelet.restarted")
	log.G(ctx).WithField("limit", kubeletPatience).Info("Waiting for the kubelet to serve by berth")
	if err := eventually(ctx, kubeletPatience, func() error { return m.serves(ctx) }); err != nil {
		return fmt.Errorf("the kubelet does not serve with berth: %w", err)
	}
	if err := m.daemon.green(ctx, true); err != nil {
		return err
	}
	m.at("installer.kubelet.green")
	return m.rescue().disarm(ctx)
}

// serves says whether the kubelet serves, and by berth.
func (m *kubeletMove) serves(ctx context.Context) error {
	if err := m.cluster.Serves(ctx, true); err != nil {
		return err
	}
	return m.holds(ctx, nil)
}

// servesWithout says whether it serves, and by another runtime.
func (m *kubeletMove) servesWithout(ctx context.Context) error {
	if err := m.cluster.Serves(ctx, false); err != nil {
		return err
	}
	k, err := kubelet.Find(m.root)
	if err != nil {
		return err
	}
	return k.Left(k.Named)
}

func (m *kubeletMove) restart(ctx context.Context, unit string) error {
	if _, err := m.host.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := m.host.Run(ctx, "systemctl", "restart", unit+".service")
	return err
}

// former are the files as they are to be, without those that somebody has removed.
func (m *kubeletMove) former(saved savedKubelet) ([]nodefs.Original, error) {
	var files []nodefs.Original
	for _, o := range saved.Files {
		now, err := os.ReadFile(m.root.Path(o.Path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o.Content = saved.reverted(o, now)
		files = append(files, o)
	}
	return files, nil
}

// alive asks the CRI daemon that the kubelet goes back to: without one, the node has no runtime.
func (m *kubeletMove) alive(ctx context.Context, endpoint string) error {
	err := eventually(ctx, m.patience, func() error {
		_, err := m.backend.Ask(ctx, endpoint)
		return err
	})
	if err != nil {
		return fmt.Errorf("the CRI daemon at %s, which the kubelet goes back to, does not answer: start it, and try again: %w", endpoint, err)
	}
	return nil
}

// mayUndo implements guarded: files that were not there at the move, or have changed since,
// may lead the kubelet to berth still.
func (m *kubeletMove) mayUndo(ctx context.Context, text []byte) error {
	var saved savedKubelet
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	files, err := m.former(saved)
	if err != nil {
		return err
	}
	k, err := kubelet.Find(m.root)
	if err != nil {
		return err
	}
	to := saved.Endpoint
	if now := k.Endpoint(); !kubelet.IsBerth(now) {
		to = kubelet.AsURL(now) // somebody has led it there
	}
	if err := m.alive(ctx, to); err != nil {
		return err
	}
	k.Runs = false // it is restarted
	named := k.Named
	for _, o := range files {
		named = slices.DeleteFunc(named, func(path string) bool { return path == o.Path })
		if kubelet.NamesBerth(string(o.Content)) {
			named = append(named, o.Path)
		}
	}
	if err := k.Left(named); err != nil {
		return err
	}
	return noPods(m.root)
}

// undo has the kubelet use what it used before. One whose files say so already is
// restarted all the same: an interrupted run may have put them back, and no more.
func (m *kubeletMove) undo(ctx context.Context, text []byte) error {
	var saved savedKubelet
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	files, err := m.former(saved)
	if err != nil {
		return err
	}
	for _, o := range files {
		if err := m.root.Restore(o); err != nil {
			return err
		}
	}
	m.at("installer.kubelet.restored")
	if err := m.restart(ctx, saved.Unit); err != nil {
		return err
	}
	log.G(ctx).WithField("limit", kubeletPatience).Info("Waiting for the kubelet to serve by its former runtime")
	if err := eventually(ctx, kubeletPatience, func() error { return m.servesWithout(ctx) }); err != nil {
		return fmt.Errorf("the kubelet does not serve with its former runtime: %w", err)
	}
	m.at("installer.kubelet.back")
	return m.rescue().disarm(ctx)
}
