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
)

// kubeletMove has the kubelet use berth, and looks whether the node is well with it.
type kubeletMove struct{ i *Installer }

// savedKubelet is what the way back needs.
type savedKubelet struct {
	Unit string `json:"unit"`
	// Endpoint is the one that the kubelet goes back to.
	Endpoint string `json:"endpoint"`
	// Files are as they were, Written as they are meanwhile, by path.
	Files   []original        `json:"files"`
	Written map[string][]byte `json:"written"`
}

// kubeletPatience is how long a kubelet may take to be Ready again.
const kubeletPatience = 3 * time.Minute

func (*kubeletMove) name() string  { return kubeletStep }
func (*kubeletMove) input() string { return socket }
func (*kubeletMove) alone() bool   { return false }

func (m *kubeletMove) prepare(ctx context.Context, before []byte) ([]byte, error) {
	if before != nil {
		return before, nil
	}
	// After the move, a missing right would be a kubelet that does not serve.
	if err := eventually(ctx, m.i.patience, func() error { return m.i.Cluster.MayAsk(ctx) }); err != nil {
		return nil, err
	}
	k, err := m.i.findKubelet()
	if err != nil {
		return nil, err
	}
	changes, err := k.moved(socket)
	if err != nil {
		return nil, err
	}
	saved := savedKubelet{Unit: k.unit, Endpoint: asURL(k.endpoint()), Written: map[string][]byte{}}
	for _, c := range changes {
		o, err := m.i.snapshot(c.path)
		if err != nil {
			return nil, err
		}
		if o.Absent || o.Link != "" {
			return nil, fmt.Errorf("%s is not a regular file: set the kubelet's endpoint to %s there by hand", c.path, socket)
		}
		saved.Files = append(saved.Files, o)
		saved.Written[c.path] = []byte(c.text)
	}
	return json.Marshal(saved)
}

func (m *kubeletMove) do(ctx context.Context, text []byte) error {
	var saved savedKubelet
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if err := m.i.arm(ctx); err != nil {
		return err
	}
	m.i.at("installer.kubelet.armed")
	for n, o := range saved.Files {
		if n == 1 {
			m.i.at("installer.kubelet.half")
		}
		if err := m.i.put(o.Path, saved.Written[o.Path], o.Mode); err != nil {
			return err
		}
		if err := os.Chown(m.i.path(o.Path), o.UID, o.GID); err != nil {
			return err
		}
	}
	m.i.at("installer.kubelet.written")
	if err := m.restart(ctx, saved.Unit); err != nil {
		return err
	}
	m.i.at("installer.kubelet.restarted")
	if err := eventually(ctx, kubeletPatience, func() error { return m.serves(ctx) }); err != nil {
		return fmt.Errorf("the kubelet does not serve with berth: %w", err)
	}
	if err := m.i.green(ctx, true); err != nil {
		return err
	}
	m.i.at("installer.kubelet.green")
	return m.i.disarm(ctx)
}

// serves says whether the kubelet serves, and by berth.
func (m *kubeletMove) serves(ctx context.Context) error {
	if err := m.i.Cluster.Serves(ctx, true); err != nil {
		return err
	}
	k, err := m.i.lookForKubelet()
	if err == nil && !isBerth(k.endpoint()) {
		err = fmt.Errorf("its endpoint is %s", k.endpoint())
	}
	return err
}

// servesWithout says whether it serves, and by another runtime.
func (m *kubeletMove) servesWithout(ctx context.Context) error {
	if err := m.i.Cluster.Serves(ctx, false); err != nil {
		return err
	}
	k, err := m.i.lookForKubelet()
	if err != nil {
		return err
	}
	return k.left(k.named)
}

func (m *kubeletMove) restart(ctx context.Context, unit string) error {
	if _, err := m.i.Host.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := m.i.Host.Run(ctx, "systemctl", "restart", unit+".service")
	return err
}

// former are the files as they are to be, without those that somebody has removed.
func (m *kubeletMove) former(saved savedKubelet) ([]original, error) {
	var files []original
	for _, o := range saved.Files {
		now, err := os.ReadFile(m.i.path(o.Path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o.Content = []byte(reverted(string(now), string(o.Content), string(saved.Written[o.Path]), socket))
		files = append(files, o)
	}
	return files, nil
}

// alive asks the CRI daemon that the kubelet goes back to: without one, the node has no runtime.
func (m *kubeletMove) alive(ctx context.Context, endpoint string) error {
	err := eventually(ctx, m.i.patience, func() error {
		_, err := m.i.Backend.Ask(ctx, endpoint)
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
	k, err := m.i.lookForKubelet()
	if err != nil {
		return err
	}
	if err := m.alive(ctx, saved.Endpoint); err != nil {
		return err
	}
	k.runs = false // it is restarted
	named := k.named
	for _, o := range files {
		named = slices.DeleteFunc(named, func(path string) bool { return path == o.Path })
		if namesBerth(string(o.Content)) {
			named = append(named, o.Path)
		}
	}
	if err := k.left(named); err != nil {
		return err
	}
	return m.i.noPods()
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
		if err := m.i.restore(o); err != nil {
			return err
		}
	}
	m.i.at("installer.kubelet.restored")
	if err := m.restart(ctx, saved.Unit); err != nil {
		return err
	}
	if err := eventually(ctx, kubeletPatience, func() error { return m.servesWithout(ctx) }); err != nil {
		return fmt.Errorf("the kubelet does not serve with its former runtime: %w", err)
	}
	m.i.at("installer.kubelet.back")
	return m.i.disarm(ctx)
}
