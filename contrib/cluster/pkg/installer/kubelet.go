package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/kubeletconf"
)

// kubeletPatience is how long a node may take to be Ready again.
const kubeletPatience = 3 * time.Minute

// switchToBerth switches the kubelet to berth by a drop-in, and back if the node does not become
// healthy.
func (r *run) switchToBerth(ctx context.Context) error {
	k, err := kubeletconf.Find(r.root())
	if err != nil {
		return err
	}
	unit, err := r.Host.Run(ctx, "systemctl", "cat", k.Unit+".service")
	if err != nil {
		return err
	}
	text, err := k.DropInText(string(unit))
	if err != nil {
		return err
	}
	now, err := os.ReadFile(r.root().Path(k.DropIn()))
	if err == nil && string(now) == text && r.st.Moved && kubeletconf.IsBerth(k.Endpoint()) {
		return nil
	}
	// Check first: a node that is already not Ready, or a missing right, would look like a kubelet
	// that fails with berth. Either runtime is accepted: an earlier run may have been interrupted.
	err = eventually(ctx, kubeletPatience, func() error {
		if r.Cluster.Serves(ctx, true) == nil {
			return nil
		}
		return r.Cluster.Serves(ctx, false)
	})
	if err != nil {
		return err
	}
	log.G(ctx).WithField("path", k.DropIn()).Info("Switching the kubelet to berth")
	r.st.Kubelet, r.st.Moved = k.Unit, false
	if err := r.st.begin(filepath.Dir(k.DropIn())); err != nil {
		return err
	}
	r.at("installer.kubelet.noted")
	if err := r.moveKubelet(ctx, k, text); err != nil {
		err = fmt.Errorf("the kubelet does not serve with berth: %w", err)
		// A run that is interrupted must leave a working kubelet, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*kubeletPatience)
		defer cancel()
		return errors.Join(err, textOnly(r.switchBack(ctx, r.st)))
	}
	r.st.Moved = true
	return r.st.save()
}

func (r *run) moveKubelet(ctx context.Context, k kubeletconf.Kubelet, text string) error {
	if err := r.root().Put(k.DropIn(), []byte(text), 0o644); err != nil {
		return err
	}
	r.at("installer.kubelet.written")
	if err := r.restart(ctx, k.Unit); err != nil {
		return err
	}
	r.at("installer.kubelet.restarted")
	log.G(ctx).WithField("limit", kubeletPatience).Info("Waiting for the kubelet to serve with berth")
	err := eventually(ctx, kubeletPatience, func() error {
		if err := r.Cluster.Serves(ctx, true); err != nil {
			return err
		}
		k, err := kubeletconf.Find(r.root())
		if err == nil && !kubeletconf.IsBerth(k.Endpoint()) {
			err = fmt.Errorf("the kubelet uses the endpoint %s", k.Endpoint())
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.checkHealth(ctx, true)
}

func (i *Installer) restart(ctx context.Context, unit string) error {
	if _, err := i.Host.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := i.Host.Run(ctx, "systemctl", "restart", unit+".service")
	return err
}

// checkRemoval returns an error if something blocks the removal of berth: a kubelet that uses berth
// but was not switched by this installer, a former runtime that does not answer, or pods.
func (i *Installer) checkRemoval(ctx context.Context, st *state) error {
	k, err := kubeletconf.Find(i.root())
	if err != nil {
		return err
	}
	if st.Kubelet != "" {
		k = k.WithoutDropIn()
	}
	if to := kubeletconf.AsURL(k.Endpoint()); st.Kubelet != "" && !kubeletconf.IsBerth(to) {
		err := eventually(ctx, i.patience, func() error {
			_, err := i.Backend.Ask(ctx, to)
			return err
		})
		if err != nil {
			return fmt.Errorf("the CRI daemon at %s, to which the kubelet returns, does not answer: start it, and try again: %w", to, err)
		}
	}
	if err := k.CheckReleased(); err != nil {
		return err
	}
	return noPods(i.root())
}

// switchBack switches the kubelet to its former runtime. It restarts the kubelet even if the
// drop-in is gone: an interrupted run may have removed it without a restart.
func (i *Installer) switchBack(ctx context.Context, st *state) error {
	if err := i.checkRemoval(ctx, st); err != nil {
		return err
	}
	k, err := kubeletconf.Find(i.root())
	if err != nil {
		return err
	}
	log.G(ctx).WithField("path", k.DropIn()).Info("Switching the kubelet back")
	if err := i.root().Remove(k.DropIn()); err != nil {
		return err
	}
	st.leave(filepath.Dir(k.DropIn()))
	i.at("installer.kubelet.restored")
	if err := i.restart(ctx, st.Kubelet); err != nil {
		return err
	}
	log.G(ctx).WithField("limit", kubeletPatience).Info("Waiting for the kubelet to serve with its former runtime")
	err = eventually(ctx, kubeletPatience, func() error {
		if err := i.Cluster.Serves(ctx, false); err != nil {
			return err
		}
		k, err := kubeletconf.Find(i.root())
		if err != nil {
			return err
		}
		return k.CheckReleased()
	})
	if err != nil {
		return fmt.Errorf("the kubelet does not serve with its former runtime: %w", err)
	}
	st.Kubelet, st.Moved = "", false
	if err := st.save(); err != nil {
		return err
	}
	i.at("installer.kubelet.back")
	return nil
}
