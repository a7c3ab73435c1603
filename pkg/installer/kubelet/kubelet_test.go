package kubelet

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

const (
	theirs = "unix:///run/containerd/containerd.sock"
	ours   = Berth
)

func TestMoved(t *testing.T) {
	const flags, extra, unit = "/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"
	for name, c := range map[string]struct {
		k Kubelet
		// endpoint is the one before, want are the texts after; wrong is part of the error.
		endpoint string
		want     map[string]string
		wrong    string
	}{
		"set in the configuration": {
			Kubelet{texts: map[string]string{Config: "kind: K\ncontainerRuntimeEndpoint: " + theirs + "\ncgroupDriver: systemd\n"}}, theirs,
			map[string]string{Config: "kind: K\ncontainerRuntimeEndpoint: " + ours + "\ncgroupDriver: systemd\n"}, "",
		},
		"quoted, with a comment": {
			Kubelet{texts: map[string]string{Config: "containerRuntimeEndpoint: \"unix:///run/crio/crio.sock\"   # CRI-O\nx: 1"}}, "unix:///run/crio/crio.sock",
			map[string]string{Config: "containerRuntimeEndpoint: " + ours + "   # CRI-O\nx: 1"}, "",
		},
		"not set at all": {
			Kubelet{texts: map[string]string{Config: "kind: K"}}, theirs,
			map[string]string{Config: "kind: K\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"empty, as kubeadm writes it": {
			Kubelet{texts: map[string]string{Config: "clusterDNS:\n- 10.0.0.10\ncontainerRuntimeEndpoint: \"\"\ncpu: 1\n"}}, theirs,
			map[string]string{Config: "clusterDNS:\n- 10.0.0.10\ncontainerRuntimeEndpoint: " + ours + "\ncpu: 1\n"}, "",
		},
		"a key of the same name deeper": {
			Kubelet{texts: map[string]string{Config: "nested:\n  containerRuntimeEndpoint: x\n"}}, theirs,
			map[string]string{Config: "nested:\n  containerRuntimeEndpoint: x\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"images as well": {
			Kubelet{texts: map[string]string{Config: "containerRuntimeEndpoint: " + theirs + "\nimageServiceEndpoint: '" + theirs + "'\n"}}, theirs,
			map[string]string{Config: "containerRuntimeEndpoint: " + ours + "\nimageServiceEndpoint: " + ours + "\n"}, "",
		},
		"kubeadm's instance configuration": {
			Kubelet{texts: map[string]string{Config: "containerRuntimeEndpoint: a\n", InstanceConfig: "apiVersion: v1\ncontainerRuntimeEndpoint: " + theirs + "\n"}}, theirs,
			map[string]string{Config: "containerRuntimeEndpoint: " + ours + "\n", InstanceConfig: "apiVersion: v1\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"kubeadm's flags win": {
			Kubelet{
				texts: map[string]string{Config: "a: b\n", flags: "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + theirs + " --pod-infra-container-image=x\"\n"},
				flags: []string{theirs},
			}, theirs,
			map[string]string{
				Config: "a: b\ncontainerRuntimeEndpoint: " + ours + "\n",
				flags:  "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + ours + " --pod-infra-container-image=x\"\n",
			}, "",
		},
		"an operator's file, and a comment": {
			Kubelet{texts: map[string]string{Config: "", extra: "# --container-runtime-endpoint=old\nKUBELET_EXTRA_ARGS=--v=2 --container-runtime-endpoint " + theirs + "\n"}}, theirs,
			map[string]string{Config: "containerRuntimeEndpoint: " + ours + "\n", extra: "# --container-runtime-endpoint=old\nKUBELET_EXTRA_ARGS=--v=2 --container-runtime-endpoint " + ours + "\n"}, "",
		},
		"a drop-in of the unit": {
			Kubelet{texts: map[string]string{Config: "", unit: "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint=" + theirs + " \\\n  --v=2\n"}}, theirs,
			map[string]string{Config: "containerRuntimeEndpoint: " + ours + "\n", unit: "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint=" + ours + " \\\n  --v=2\n"}, "",
		},
		"a flag from nowhere": {
			Kubelet{texts: map[string]string{Config: ""}, flags: []string{theirs}}, theirs, nil, "is in none of",
		},
		"a package's unit": {
			Kubelet{texts: map[string]string{Config: ""}, packaged: []string{"/usr/lib/systemd/system/kubelet.service"}}, theirs, nil, "belongs to a package",
		},
		"JSON":                        {Kubelet{texts: map[string]string{Config: "{\"kind\": \"K\"}\n"}}, theirs, nil, "is JSON"},
		"no configuration":            {Kubelet{texts: map[string]string{}}, theirs, nil, "does not exist"},
		"k3s with its own containerd": {Kubelet{K3s: true, Unit: "k3s"}, "", nil, "a containerd of its own"},
		"k3s with another endpoint": {
			Kubelet{K3s: true, Unit: "k3s", texts: map[string]string{k3sConfig: "write-kubeconfig-mode: \"0644\"\ncontainer-runtime-endpoint: /run/containerd/containerd.sock\n"}}, "/run/containerd/containerd.sock",
			map[string]string{k3sConfig: "write-kubeconfig-mode: \"0644\"\ncontainer-runtime-endpoint: " + ours + "\n"}, "",
		},
		"k3s by its command line": {
			Kubelet{K3s: true, Unit: "k3s", flags: []string{theirs}, texts: map[string]string{k3sConfig: "container-runtime-endpoint: x\n"}}, theirs, nil, "on its command line",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.k.config == "" {
				c.k.config = Config
			}
			if got := c.k.Endpoint(); got != c.endpoint {
				t.Errorf("the endpoint is %q, want %q", got, c.endpoint)
			}
			changes, err := c.k.Moved(ours)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Fatalf("got %v, %v", changes, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, ch := range changes {
				got[ch.Path] = ch.Text
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			moved := Kubelet{config: c.k.config, K3s: c.k.K3s, texts: maps.Clone(c.k.texts)}
			maps.Copy(moved.texts, got)
			if now := moved.Endpoint(); now != ours {
				t.Errorf("the kubelet would use %q", now)
			}
			// The way back is what was there, to the byte.
			for path, text := range got {
				if back := Reverted(text, c.k.texts[path], text, ours); back != c.k.texts[path] {
					t.Errorf("%s is %q after the way back", path, back)
				}
			}
		})
	}
}

// Somebody has written into the files while berth had the kubelet.
func TestReverted(t *testing.T) {
	for name, c := range map[string]struct{ now, old, want string }{
		"another key": {"a: 2\ncontainerRuntimeEndpoint: " + ours + "\n", "a: 1\ncontainerRuntimeEndpoint: " + theirs + "\n", "a: 2\ncontainerRuntimeEndpoint: " + theirs + "\n"},
		"added key":   {"a: 2\ncontainerRuntimeEndpoint: " + ours + "\nb: 1\n", "a: 1\n", "a: 2\nb: 1\n"},
		"moved on":    {"containerRuntimeEndpoint: unix:///run/x.sock\n", "containerRuntimeEndpoint: " + theirs + "\n", "containerRuntimeEndpoint: unix:///run/x.sock\n"},
		"flags":       {"A=\"--container-runtime-endpoint=" + ours + " --v=3\"\n", "A=\"--container-runtime-endpoint=" + theirs + "\"\n", "A=\"--container-runtime-endpoint=" + theirs + " --v=3\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Reverted(c.now, c.old, "what was written", ours); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A unit that is enabled by a link has its flags where that leads.
func TestFindByLink(t *testing.T) {
	root := nodefs.Root(t.TempDir())
	if err := root.Put("/usr/lib/kubelet.service", []byte("ExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix:///run/crio/crio.sock\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const unit = "/etc/systemd/system/kubelet.service"
	if err := os.MkdirAll(filepath.Dir(root.Path(unit)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/lib/kubelet.service", root.Path(unit)); err != nil {
		t.Fatal(err)
	}
	k, err := Restartable(root)
	if err != nil || k.Unit != "kubelet" || k.Endpoint() != "unix:///run/crio/crio.sock" {
		t.Errorf("got %+v, %v", k, err)
	}
	if err := os.Remove(root.Path(unit)); err != nil {
		t.Fatal(err)
	}
	if k, err := Restartable(root); err == nil {
		t.Errorf("a kubelet that no service starts is %+v", k)
	}
}

// A program of a pod may be called kubelet, and names files that are none of its business.
func TestKubeletOfAPod(t *testing.T) {
	root := nodefs.Root(t.TempDir())
	process := func(pid, comm, namespace, cmdline string) {
		t.Helper()
		for name, text := range map[string]string{"comm": comm + "\n", "cmdline": cmdline} {
			if err := root.Put("/proc/"+pid+"/"+name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		link := root.Path("/proc/" + pid + "/ns/pid")
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("pid:["+namespace+"]", link); err != nil {
			t.Fatal(err)
		}
	}
	process("1", "systemd", "1", "/sbin/init")
	process("10", "kubelet", "2", "kubelet\x00--config=/etc/shadow\x00--container-runtime-endpoint=unix:///evil.sock\x00")
	if k, err := Find(root); err != nil || k.config != Config || k.Endpoint() != theirs {
		t.Errorf("a pod's program is taken for the kubelet: %+v, %v", k, err)
	}
	process("20", "kubelet", "1", "kubelet\x00--container-runtime-endpoint=unix:///run/crio/crio.sock\x00")
	if k, err := Find(root); err != nil || k.Endpoint() != "unix:///run/crio/crio.sock" {
		t.Errorf("the node's own is %+v, %v", k, err)
	}
}

// systemd takes a line for a comment also when it is indented, and a flag may be.
func TestIndentedFlags(t *testing.T) {
	for text, want := range map[string]string{
		"  # A=--container-runtime-endpoint=unix:///x\n":     "",
		"\t; A=--container-runtime-endpoint=unix:///x\n":     "",
		"  --container-runtime-endpoint=unix:///x\n":         "unix:///x",
		"A=\"--v=2 --container-runtime-endpoint=unix:///x\"": "unix:///x",
	} {
		if got := flagValue(text, endpointFlags[0]); got != want {
			t.Errorf("%q has %q, want %q", text, got, want)
		}
	}
}
