package installer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/kubeletconf"
)

// berth stays if others have made the kubelet use it: without berth, the kubelet has no runtime.
func TestKubeletLeftWithBerth(t *testing.T) {
	for name, c := range map[string]struct {
		moved  bool
		change func(*node)
		wrong  string
	}{
		"by hand": {false, func(n *node) {
			n.write(kubeletconf.Config, "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: "+ours+"\n")
		}, kubeletconf.Config},
		"by hand, without a scheme": {false, func(n *node) {
			n.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=/var/run/berth/berth.sock\n")
		}, "/etc/default/kubelet"},
		"by a package's unit": {false, func(n *node) {
			n.write("/usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint="+ours+"\n")
		}, "/usr/lib/systemd/system/kubelet.service"},
		"on its command line": {false, func(n *node) {
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--container-runtime-endpoint\x00"+ours)
		}, "command line"},
		"in a configuration of another name": {false, func(n *node) {
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--config=/etc/kubelet.conf")
			n.write("/etc/kubelet.conf", "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: "+ours+"\n")
		}, "/etc/kubelet.conf"},
		"without a service": {false, func(n *node) {
			test.Must(n.t, os.Remove(filepath.Join(n.root, "/usr/lib/systemd/system/kubelet.service")))
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--container-runtime-endpoint="+ours)
		}, "command line"},
		"kubeadm upgrade, its file": {true, func(n *node) {
			n.write(kubeletconf.InstanceConfig, "containerRuntimeEndpoint: "+ours+"\n")
		}, kubeletconf.InstanceConfig},
		"kubeadm upgrade, a flag": {true, func(n *node) {
			n.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--container-runtime-endpoint="+ours+"\n")
		}, "/etc/default/kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			w := n.wanted()
			w.Kubelet = c.moved
			test.Must(t, n.install(w))
			c.change(n)
			before := n.tree()
			test.Says(t, n.uninstall(), c.wrong, "try again")
			if n.tree() != before || !n.running["berth"] {
				t.Errorf("the uninstallation has changed the node; berth runs: %t", n.running["berth"])
			}
		})
	}
}

// berth is not stopped while the kubelet's command line still has berth's socket.
func TestKubeletComesBackWithBerth(t *testing.T) {
	n := newTestNode(t)
	test.Must(t, n.install(n.wanted()))
	ctx, end := context.WithCancel(t.Context())
	n.at = func(place string) {
		if place == "after systemctl restart kubelet.service" {
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--container-runtime-endpoint="+ours)
			end()
		}
	}
	test.Says(t, n.installer().Uninstall(ctx), "command line")
	if !n.running["berth"] {
		t.Error("berth was stopped")
	}
}

// A kubelet is not moved back to a daemon that does not answer.
func TestNowhereToGoBackTo(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	test.Must(t, n.install(w))
	moved := n.tree()
	n.dead = true
	away := func(err error) {
		t.Helper()
		test.Says(t, err, "start it, and try again")
		if n.endpoint != ours || !n.running["berth"] {
			t.Errorf("the kubelet uses %s; berth runs: %t", n.endpoint, n.running["berth"])
		}
	}
	impatient := func() *Installer {
		i := n.installer()
		i.patience = 0
		return i
	}
	away(impatient().Uninstall(t.Context()))
	if n.tree() != moved {
		t.Error("the uninstallation has changed the node")
	}
	w.Kubelet = false
	away(impatient().Install(t.Context(), w))
	n.dead = false
	test.Must(t, n.uninstall())
	n.as(before)

	// The other daemon stops while the kubelet is moved, and the move fails.
	w.Kubelet = true
	n.at = func(place string) {
		if place == "installer.kubelet.restarted" {
			n.dead, n.doctor = true, `{"check":"handlers","level":"fail"}`
		}
	}
	away(impatient().Install(t.Context(), w))
	n.dead, n.doctor, n.at = false, "", nil
	test.Must(t, n.uninstall())
	n.as(before)
}

// A missing right is noticed before the kubelet is moved, and the request is not repeated.
func TestForbidden(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	n.forbidden = fmt.Errorf("cannot get nodes: %w", ErrFinal)
	test.Says(t, n.install(w), "cannot get nodes")
	n.as(before)
	if slices.Contains(n.asked, "systemctl restart kubelet.service") {
		t.Error("the kubelet was restarted")
	}
	n.forbidden = nil
	test.Must(t, n.install(w))
	n.forbidden, n.refused = fmt.Errorf("cannot get nodes: %w", ErrFinal), 0
	if err := n.uninstall(); err == nil || n.refused != 1 {
		t.Errorf("got %v after %d requests, want 1", err, n.refused)
	}
}

// A kubelet that others have moved back is not restarted if a missing right prevents its move.
func TestRefusedMoveRestartsNothing(t *testing.T) {
	n, w := installed(t)
	test.Must(t, os.Remove(filepath.Join(n.root, kubeletconf.DropIn)))
	n.endpoint = theirs
	n.forbidden = fmt.Errorf("cannot get nodes: %w", ErrFinal)
	n.asked = nil
	err := n.install(w)
	if slices.Contains(n.asked, "systemctl restart kubelet.service") {
		t.Errorf("the kubelet was restarted: %v", err)
	}
}
