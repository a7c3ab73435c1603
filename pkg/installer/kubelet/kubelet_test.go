package kubelet

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
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
				texts:     map[string]string{Config: "a: b\n", flags: "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + theirs + " --pod-infra-container-image=x\"\n"},
				arguments: []string{"kubelet", "--container-runtime-endpoint=" + theirs},
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
			Kubelet{texts: map[string]string{Config: ""}, arguments: []string{"kubelet", "--container-runtime-endpoint=" + theirs}}, theirs, nil, "is in none of",
		},
		"a package's unit": {
			Kubelet{texts: map[string]string{Config: ""}, packaged: []string{"/usr/lib/systemd/system/kubelet.service"}}, theirs, nil, "belongs to a package",
		},
		"a file of --config-dir wins": {
			Kubelet{configs: []string{"/d/10.conf", "/d/20.conf"}, texts: map[string]string{Config: "kind: K\n", "/d/10.conf": "cpu: 1\n", "/d/20.conf": "kind: K\ncontainerRuntimeEndpoint: unix:///run/crio/crio.sock\n"}}, "unix:///run/crio/crio.sock",
			map[string]string{Config: "kind: K\ncontainerRuntimeEndpoint: " + ours + "\n", "/d/20.conf": "kind: K\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"a file of --config-dir that is JSON": {
			Kubelet{configs: []string{"/d/10.conf"}, texts: map[string]string{Config: "kind: K\n", "/d/10.conf": "{\n  \"containerRuntimeEndpoint\": \"unix:///run/crio/crio.sock\"\n}\n"}}, "unix:///run/crio/crio.sock", nil, "/d/10.conf is JSON",
		},
		"half of it": {
			Kubelet{texts: map[string]string{Config: "imageServiceEndpoint: " + theirs + "\n", InstanceConfig: "containerRuntimeEndpoint: " + ours + "\n"}}, ours,
			map[string]string{Config: "imageServiceEndpoint: " + ours + "\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"images of another daemon": {
			Kubelet{texts: map[string]string{Config: "containerRuntimeEndpoint: " + theirs + "\nimageServiceEndpoint: unix:///run/stargz.sock\n"}}, theirs, nil, "pull images by unix:///run/stargz.sock",
		},
		"images of another daemon by a flag": {
			Kubelet{texts: map[string]string{Config: "a: b\n", extra: "A=--image-service-endpoint=unix:///run/stargz.sock\n"}}, theirs, nil, extra + " has the kubelet pull images",
		},
		"JSON":                        {Kubelet{texts: map[string]string{Config: "{\"kind\": \"K\"}\n"}}, theirs, nil, "is JSON"},
		"no configuration":            {Kubelet{texts: map[string]string{}}, theirs, nil, "does not exist"},
		"k3s with its own containerd": {Kubelet{K3s: true, Unit: "k3s"}, "", nil, "a containerd of its own"},
		"k3s with another endpoint": {
			Kubelet{K3s: true, Unit: "k3s", texts: map[string]string{k3sConfig: "write-kubeconfig-mode: \"0644\"\ncontainer-runtime-endpoint: /run/containerd/containerd.sock\n"}}, "/run/containerd/containerd.sock",
			map[string]string{k3sConfig: "write-kubeconfig-mode: \"0644\"\ncontainer-runtime-endpoint: " + ours + "\n"}, "",
		},
		"k3s by its command line": {
			Kubelet{K3s: true, Unit: "k3s", arguments: []string{"kubelet", "--container-runtime-endpoint=" + theirs}, texts: map[string]string{k3sConfig: "container-runtime-endpoint: x\n"}}, theirs, nil, "on its command line",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.k.configs = append([]string{Config, InstanceConfig}, c.k.configs...)
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
			moved := Kubelet{configs: c.k.configs, K3s: c.k.K3s, texts: maps.Clone(c.k.texts)}
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
	if k, err := Find(root); err != nil || k.configs[0] != Config || k.Endpoint() != theirs {
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

// A kubelet that does not run has its configuration where its unit says, and files of a directory
// beside that, of which the last one wins.
func TestFindConfigDir(t *testing.T) {
	root := nodefs.Root(t.TempDir())
	for path, text := range map[string]string{
		"/usr/lib/systemd/system/kubelet.service":                   "[Service]\nExecStart=/usr/bin/kubelet\n",
		"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nEnvironment=\"KUBELET_CONFIG_ARGS=--config=/etc/kubelet.yaml\"\n",
		"/etc/default/kubelet":                                      "KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes/kubelet.conf.d\n",
		"/etc/kubelet.yaml":                                         "kind: KubeletConfiguration\n",
		"/etc/kubernetes/kubelet.conf.d/10.conf":                    "containerRuntimeEndpoint: unix:///a.sock\n",
		"/etc/kubernetes/kubelet.conf.d/deeper/20.conf":             "containerRuntimeEndpoint: " + ours + "\nhealthzPort: 10300\n",
		"/etc/kubernetes/kubelet.conf.d/30.yaml":                    "containerRuntimeEndpoint: unix:///none.sock\n",
	} {
		if err := root.Put(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k, err := Find(root)
	if err != nil {
		t.Fatal(err)
	}
	const last = "/etc/kubernetes/kubelet.conf.d/deeper/20.conf"
	if k.Endpoint() != ours || !slices.Equal(k.Named, []string{last}) || k.configs[0] != "/etc/kubelet.yaml" {
		t.Errorf("got %s by %v; its configuration is %v", k.Endpoint(), k.Named, k.configs)
	}
	if address := k.HealthAddress(); address != "127.0.0.1:10300" {
		t.Errorf("it is well at %s", address)
	}
}

func TestHealthAddress(t *testing.T) {
	for text, c := range map[string]struct{ want, flags string }{
		"":                                    {"127.0.0.1:10248", ""},
		"healthzPort: 10300\n":                {"127.0.0.1:10300", ""},
		"healthzPort: 10301\n":                {"127.0.0.1:10302", "--healthz-port=10302"},
		"healthzPort: 0\n":                    {"", ""},
		"healthzBindAddress: 0.0.0.0\n":       {"127.0.0.1:10248", ""},
		"healthzBindAddress: 0.0.0.0 #\n":     {"[fd00::11]:10248", "--healthz-bind-address fd00::11"},
		"healthzBindAddress: \"::\"\n":        {"[::1]:10248", ""},
		"healthzBindAddress: fd00::10\n":      {"[fd00::10]:10248", ""},
		"healthzBindAddress: 192.168.1.10\n":  {"192.168.1.10:10248", ""},
		"{\"healthzPort\": 10303}\n":          {"127.0.0.1:10303", ""},
		"healthzBindAddress: [no, address]\n": {"127.0.0.1:10248", ""},
	} {
		k := Kubelet{configs: []string{Config}, texts: map[string]string{Config: text}, arguments: append([]string{"kubelet"}, strings.Fields(c.flags)...)}
		if got := k.HealthAddress(); got != c.want {
			t.Errorf("%q %s: got %q, want %q", text, c.flags, got, c.want)
		}
	}
}

// k3s hides its command line, has flags in its unit, and reads more files than one.
func TestK3sLedToBerth(t *testing.T) {
	const unit = "/etc/systemd/system/k3s.service"
	for name, files := range map[string]map[string]string{
		"a flag":          {unit: "[Service]\nExecStart=/usr/local/bin/k3s server --container-runtime-endpoint=" + ours + "\n"},
		"a flag, quoted":  {unit: "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--container-runtime-endpoint' \\\n\t'" + ours + "' \\\n"},
		"a drop-in":       {unit: "[Service]\n", unit + ".d/10.conf": "[Service]\nEnvironment=X=" + ours + "\n"},
		"another file":    {unit: "[Service]\n", k3sConfig + ".d/10-cri.yaml": "container-runtime-endpoint: " + ours + "\n"},
		"its environment": {unit: "[Service]\n", unit + ".env": "K3S_CONTAINER_RUNTIME_ENDPOINT=" + ours + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := nodefs.Root(t.TempDir())
			files["/proc/77/comm"], files["/proc/77/cmdline"] = "k3s-server\n", "/usr/local/bin/k3s server\x00"
			for path, text := range files {
				if err := root.Put(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			k, err := Find(root)
			if err != nil || k.Left(k.Named) == nil || k.Endpoint() != ours {
				t.Errorf("it uses %s by %v: %v", k.Endpoint(), k.Named, err)
			}
		})
	}
}
