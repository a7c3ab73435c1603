package installer

import (
	"maps"
	"strings"
	"testing"
)

const (
	theirs = "unix:///run/containerd/containerd.sock"
	ours   = socket
)

func TestMoved(t *testing.T) {
	const flags, extra, unit = "/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"
	for name, c := range map[string]struct {
		k kubelet
		// endpoint is the one before, want are the texts after; wrong is part of the error.
		endpoint string
		want     map[string]string
		wrong    string
	}{
		"set in the configuration": {
			kubelet{texts: map[string]string{kubeletConfig: "kind: K\ncontainerRuntimeEndpoint: " + theirs + "\ncgroupDriver: systemd\n"}}, theirs,
			map[string]string{kubeletConfig: "kind: K\ncontainerRuntimeEndpoint: " + ours + "\ncgroupDriver: systemd\n"}, "",
		},
		"quoted, with a comment": {
			kubelet{texts: map[string]string{kubeletConfig: "containerRuntimeEndpoint: \"unix:///run/crio/crio.sock\"   # CRI-O\nx: 1"}}, "unix:///run/crio/crio.sock",
			map[string]string{kubeletConfig: "containerRuntimeEndpoint: " + ours + "   # CRI-O\nx: 1"}, "",
		},
		"not set at all": {
			kubelet{texts: map[string]string{kubeletConfig: "kind: K"}}, theirs,
			map[string]string{kubeletConfig: "kind: K\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"empty, as kubeadm writes it": {
			kubelet{texts: map[string]string{kubeletConfig: "clusterDNS:\n- 10.0.0.10\ncontainerRuntimeEndpoint: \"\"\ncpu: 1\n"}}, theirs,
			map[string]string{kubeletConfig: "clusterDNS:\n- 10.0.0.10\ncontainerRuntimeEndpoint: " + ours + "\ncpu: 1\n"}, "",
		},
		"a key of the same name deeper": {
			kubelet{texts: map[string]string{kubeletConfig: "nested:\n  containerRuntimeEndpoint: x\n"}}, theirs,
			map[string]string{kubeletConfig: "nested:\n  containerRuntimeEndpoint: x\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"images as well": {
			kubelet{texts: map[string]string{kubeletConfig: "containerRuntimeEndpoint: " + theirs + "\nimageServiceEndpoint: '" + theirs + "'\n"}}, theirs,
			map[string]string{kubeletConfig: "containerRuntimeEndpoint: " + ours + "\nimageServiceEndpoint: " + ours + "\n"}, "",
		},
		"kubeadm's instance configuration": {
			kubelet{texts: map[string]string{kubeletConfig: "containerRuntimeEndpoint: a\n", instanceConfig: "apiVersion: v1\ncontainerRuntimeEndpoint: " + theirs + "\n"}}, theirs,
			map[string]string{kubeletConfig: "containerRuntimeEndpoint: " + ours + "\n", instanceConfig: "apiVersion: v1\ncontainerRuntimeEndpoint: " + ours + "\n"}, "",
		},
		"kubeadm's flags win": {
			kubelet{
				texts: map[string]string{kubeletConfig: "a: b\n", flags: "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + theirs + " --pod-infra-container-image=x\"\n"},
				flags: []string{theirs},
			}, theirs,
			map[string]string{
				kubeletConfig: "a: b\ncontainerRuntimeEndpoint: " + ours + "\n",
				flags:         "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + ours + " --pod-infra-container-image=x\"\n",
			}, "",
		},
		"an operator's file, and a comment": {
			kubelet{texts: map[string]string{kubeletConfig: "", extra: "# --container-runtime-endpoint=old\nKUBELET_EXTRA_ARGS=--v=2 --container-runtime-endpoint " + theirs + "\n"}}, theirs,
			map[string]string{kubeletConfig: "containerRuntimeEndpoint: " + ours + "\n", extra: "# --container-runtime-endpoint=old\nKUBELET_EXTRA_ARGS=--v=2 --container-runtime-endpoint " + ours + "\n"}, "",
		},
		"a drop-in of the unit": {
			kubelet{texts: map[string]string{kubeletConfig: "", unit: "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint=" + theirs + " \\\n  --v=2\n"}}, theirs,
			map[string]string{kubeletConfig: "containerRuntimeEndpoint: " + ours + "\n", unit: "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint=" + ours + " \\\n  --v=2\n"}, "",
		},
		"a flag from nowhere": {
			kubelet{texts: map[string]string{kubeletConfig: ""}, flags: []string{theirs}}, theirs, nil, "is in none of",
		},
		"a package's unit": {
			kubelet{texts: map[string]string{kubeletConfig: ""}, packaged: []string{"/usr/lib/systemd/system/kubelet.service"}}, theirs, nil, "belongs to a package",
		},
		"JSON":                        {kubelet{texts: map[string]string{kubeletConfig: "{\"kind\": \"K\"}\n"}}, theirs, nil, "is JSON"},
		"no configuration":            {kubelet{texts: map[string]string{}}, theirs, nil, "does not exist"},
		"k3s with its own containerd": {kubelet{k3s: true, unit: "k3s"}, "", nil, "a containerd of its own"},
		"k3s with another endpoint": {
			kubelet{k3s: true, unit: "k3s", texts: map[string]string{k3sConfig: "write-kubeconfig-mode: \"0644\"\ncontainer-runtime-endpoint: /run/containerd/containerd.sock\n"}}, "/run/containerd/containerd.sock",
			map[string]string{k3sConfig: "write-kubeconfig-mode: \"0644\"\ncontainer-runtime-endpoint: " + ours + "\n"}, "",
		},
		"k3s by its command line": {
			kubelet{k3s: true, unit: "k3s", flags: []string{theirs}, texts: map[string]string{k3sConfig: "container-runtime-endpoint: x\n"}}, theirs, nil, "on its command line",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.k.config == "" {
				c.k.config = kubeletConfig
			}
			if got := c.k.endpoint(); got != c.endpoint {
				t.Errorf("the endpoint is %q, want %q", got, c.endpoint)
			}
			changes, err := c.k.moved(ours)
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
				got[ch.path] = ch.text
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			moved := kubelet{config: c.k.config, k3s: c.k.k3s, texts: maps.Clone(c.k.texts)}
			maps.Copy(moved.texts, got)
			if now := moved.endpoint(); now != ours {
				t.Errorf("the kubelet would use %q", now)
			}
			// The way back is what was there, to the byte.
			for path, text := range got {
				if back := reverted(text, c.k.texts[path], text, ours); back != c.k.texts[path] {
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
			if got := reverted(c.now, c.old, "what was written", ours); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
