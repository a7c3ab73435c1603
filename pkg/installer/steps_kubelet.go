package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// kubeletMove has the kubelet use berth, and looks whether the node is well with it.
type kubeletMove struct{ i *Installer }

// savedKubelet is what the way back needs.
type savedKubelet struct {
	Unit string `json:"unit"`
	// Files are as they were, Written as they are meanwhile, by path.
	Files   []original        `json:"files"`
	Written map[string][]byte `json:"written"`
}

// kubeletPatience is how long a kubelet may take to be Ready again.
const kubeletPatience = 3 * time.Minute

func (*kubeletMove) name() string  { return kubeletStep }
func (*kubeletMove) input() string { return socket }
func (*kubeletMove) alone() bool   { return false }

func (m *kubeletMove) prepare(_ context.Context, before []byte) ([]byte, error) {
	if before != nil {
		return before, nil
	}
	k, err := m.i.findKubelet()
	if err != nil {
		return nil, err
	}
	changes, err := k.moved(socket)
	if err != nil {
		return nil, err
	}
	saved := savedKubelet{Unit: k.unit, Written: map[string][]byte{}}
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
	if err := eventually(ctx, kubeletPatience, func() error { return m.i.Cluster.Serves(ctx, true) }); err != nil {
		return fmt.Errorf("the kubelet does not serve with berth: %w", err)
	}
	return m.i.green(ctx, true)
}

func (m *kubeletMove) restart(ctx context.Context, unit string) error {
	if _, err := m.i.Host.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := m.i.Host.Run(ctx, "systemctl", "restart", unit+".service")
	return err
}

// undo has the kubelet use what it used before. One whose files say so already is
// restarted all the same: an interrupted run may have put them back, and no more.
func (m *kubeletMove) undo(ctx context.Context, text []byte) error {
	var saved savedKubelet
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if err := m.i.noPods(); err != nil {
		return err
	}
	for _, o := range saved.Files {
		now, err := os.ReadFile(m.i.path(o.Path))
		if errors.Is(err, fs.ErrNotExist) {
			continue // somebody has removed it
		}
		if err != nil {
			return err
		}
		text := reverted(o.Path, string(now), string(o.Content), string(saved.Written[o.Path]), socket)
		o.Content = []byte(text)
		if err := m.i.restore(o); err != nil {
			return err
		}
	}
	m.i.at("installer.kubelet.restored")
	if err := m.restart(ctx, saved.Unit); err != nil {
		return err
	}
	if err := eventually(ctx, kubeletPatience, func() error { return m.i.Cluster.Serves(ctx, false) }); err != nil {
		return fmt.Errorf("the kubelet does not serve with its former runtime: %w", err)
	}
	return nil
}
