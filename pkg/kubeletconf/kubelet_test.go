package kubeletconf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/nodefs"
)

const (
	theirs = "unix:///run/containerd/containerd.sock"
	ours   = Berth
)

// files returns the files of pairs of path and text.
func files(pathsAndTexts ...string) []file {
	var all []file
	for n := 0; n < len(pathsAndTexts); n += 2 {
		all = append(all, file{pathsAndTexts[n], pathsAndTexts[n+1]})
	}
	return all
}

// TestMovable has all kinds of kubelets, with their endpoint and what prevents a change of it.
func TestMovable(t *testing.T) {
	const flags, extra = "/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet"
	const crio = "unix:///run/crio/crio.sock"
	for name, c := range map[string]struct {
		k        Kubelet
		endpoint string
		wrong    string
	}{
		"set in the configuration":          {Kubelet{configs: files(Config, "kind: K\ncontainerRuntimeEndpoint: "+theirs+"\n")}, theirs, ""},
		"quoted, with a comment":            {Kubelet{configs: files(Config, "containerRuntimeEndpoint: \""+crio+"\"   # CRI-O\nx: 1")}, crio, ""},
		"not set at all":                    {Kubelet{configs: files(Config, "kind: K")}, theirs, ""},
		"empty, as kubeadm writes it":       {Kubelet{configs: files(Config, "containerRuntimeEndpoint: \"\"\ncpu: 1\n")}, theirs, ""},
		"a key of the same name deeper":     {Kubelet{configs: files(Config, "nested:\n  containerRuntimeEndpoint: x\n")}, theirs, ""},
		"JSON":                              {Kubelet{configs: files(Config, "{\"containerRuntimeEndpoint\": \""+crio+"\"}\n")}, crio, ""},
		"kubeadm's instance configuration":  {Kubelet{configs: files(Config, "containerRuntimeEndpoint: a\n", InstanceConfig, "containerRuntimeEndpoint: "+crio+"\n")}, crio, ""},
		"kubeadm's flags win":               {Kubelet{configs: files(Config, "containerRuntimeEndpoint: a\n"), flags: files(flags, "A=\"--container-runtime-endpoint="+crio+" --v=2\"\n")}, crio, ""},
		"an operator's file, and a comment": {Kubelet{flags: files(extra, "# --container-runtime-endpoint=old\nA=--v=2 --container-runtime-endpoint "+crio+"\n")}, crio, ""},
		"the command line wins":             {Kubelet{flags: files(flags, "A=--container-runtime-endpoint=a\n"), arguments: []string{"kubelet", "--container-runtime-endpoint=" + crio}}, crio, ""},
		"no service":                        {Kubelet{Unit: "-"}, theirs, "cannot be restarted"},
		"images as well":                    {Kubelet{configs: files(Config, "imageServiceEndpoint: 'unix:///var/run/containerd/containerd.sock'\n")}, theirs, ""},
		"images of another daemon": {
			Kubelet{configs: files(Config, "imageServiceEndpoint: unix:///run/stargz.sock\n")}, theirs, "pulls images by unix:///run/stargz.sock",
		},
		"images of another daemon by a flag": {
			Kubelet{flags: files(extra, "A=--image-service-endpoint=unix:///run/stargz.sock\n")}, theirs, "pulls images by unix:///run/stargz.sock",
		},
		"k3s with its own containerd": {Kubelet{K3s: true}, "", "a containerd of its own"},
		"k3s with another endpoint":   {Kubelet{K3s: true, configs: files(k3sConfig, "container-runtime-endpoint: /run/crio/crio.sock\n")}, "/run/crio/crio.sock", ""},
		"k3s by its command line":     {Kubelet{K3s: true, arguments: []string{"k3s", "--container-runtime-endpoint=" + crio}}, crio, "on its command line"},
		"k3s by its unit":             {Kubelet{K3s: true, flags: files("/etc/systemd/system/k3s.service", "ExecStart=k3s server --container-runtime-endpoint="+crio)}, crio, "on its command line"},
	} {
		t.Run(name, func(t *testing.T) {
			c.k.Unit = map[string]string{"": "kubelet", "-": ""}[c.k.Unit]
			test.Equal(t, "the endpoint", c.k.Endpoint(), c.endpoint)
			if err := c.k.CheckMovable(); (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}

// TestLead has units as distributions and kubeadm install them.
func TestLead(t *testing.T) {
	const section = header + "[Service]\nExecStart=\nExecStart="
	const ending = " --container-runtime-endpoint=" + ours + "\n"
	for name, c := range map[string]struct {
		k          Kubelet
		unit, want string
	}{
		"plain": {Kubelet{}, "# /usr/lib/systemd/system/kubelet.service\n[Service]\nExecStart=/usr/bin/kubelet $ARGS\nRestart=always\n", section + "/usr/bin/kubelet $ARGS" + ending},
		"kubeadm's drop-in": {
			Kubelet{}, "# /lib/systemd/system/kubelet.service\n[Service]\nExecStart=/usr/bin/kubelet\n\n# /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf\n[Service]\n# This is a file\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS ${X}\n",
			section + "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS ${X}" + ending,
		},
		"on several lines":      {Kubelet{}, "[Service]\nExecStart = -/usr/bin/kubelet \\\n  --v=2 \\\n  --x='a b'\nExecStartPre=/bin/true\n", section + "-/usr/bin/kubelet    --v=2    --x='a b'" + ending},
		"with an older drop-in": {Kubelet{}, "# /usr/lib/systemd/system/kubelet.service\n[Service]\nExecStart=/usr/bin/kubelet\n\n# " + DropIn + "\n" + section + "/usr/bin/old" + ending, section + "/usr/bin/kubelet" + ending},
		"images as well": {
			Kubelet{configs: files(Config, "imageServiceEndpoint: "+theirs+"\n")}, "[Service]\nExecStart=/usr/bin/kubelet\n",
			section + "/usr/bin/kubelet --container-runtime-endpoint=" + ours + " --image-service-endpoint=" + ours + "\n",
		},
		"k3s":        {Kubelet{K3s: true}, "", header + "container-runtime-endpoint: " + ours + "\n"},
		"no command": {Kubelet{}, "[Service]\nExecStart=\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.k.DropInText(c.unit)
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// Without berth's drop-in, the kubelet uses its earlier endpoint again.
func TestWithout(t *testing.T) {
	root := nodefs.Root(t.TempDir())
	for path, text := range map[string]string{
		Config: "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n",
		DropIn: header + "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=" + ours + "\n",
		"/usr/lib/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet\n",
		"/proc/7/comm": "kubelet\n", "/proc/7/cmdline": "kubelet\x00--container-runtime-endpoint=" + ours,
	} {
		test.Must(t, root.Put(path, []byte(text), 0o644))
	}
	k, err := Find(root)
	if err != nil || k.Endpoint() != ours || k.CheckReleased() == nil {
		t.Errorf("the kubelet uses %s, %v", k.Endpoint(), err)
	}
	if k = k.WithoutDropIn(); k.Endpoint() != "unix:///run/crio/crio.sock" || k.CheckReleased() != nil {
		t.Errorf("without the drop-in, the kubelet uses %s: %v", k.Endpoint(), k.CheckReleased())
	}
}

// Find reads the flags of a unit through its link.
func TestFindByLink(t *testing.T) {
	root := nodefs.Root(t.TempDir())
	test.Must(t, root.Put("/usr/lib/kubelet.service", []byte("ExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix:///run/crio/crio.sock\n"), 0o644))
	const unit = "/etc/systemd/system/kubelet.service"
	test.Must(t, os.MkdirAll(filepath.Dir(root.Path(unit)), 0o755))
	test.Must(t, os.Symlink("/usr/lib/kubelet.service", root.Path(unit)))
	k, err := Find(root)
	if err != nil || k.Unit != "kubelet" || k.Endpoint() != "unix:///run/crio/crio.sock" {
		t.Errorf("got %+v, %v", k, err)
	}
	test.Must(t, os.Remove(root.Path(unit)))
	if k, err := Find(root); err != nil || k.CheckMovable() == nil {
		t.Errorf("a kubelet that no service starts is %+v, %v", k, err)
	}
}

// A program of a pod may be named kubelet; Find must not read the files on its command line.
func TestKubeletOfAPod(t *testing.T) {
	root := nodefs.Root(t.TempDir())
	process := func(pid, comm, namespace, cmdline string) {
		t.Helper()
		for name, text := range map[string]string{"comm": comm + "\n", "cmdline": cmdline} {
			test.Must(t, root.Put("/proc/"+pid+"/"+name, []byte(text), 0o644))
		}
		link := root.Path("/proc/" + pid + "/ns/pid")
		test.Must(t, os.MkdirAll(filepath.Dir(link), 0o755))
		test.Must(t, os.Symlink("pid:["+namespace+"]", link))
	}
	process("1", "systemd", "1", "/sbin/init")
	process("10", "kubelet", "2", "kubelet\x00--config=/etc/shadow\x00--container-runtime-endpoint=unix:///evil.sock\x00")
	if k, err := Find(root); err != nil || len(k.configs) > 0 || k.Endpoint() != theirs {
		t.Errorf("a pod's program is taken for the kubelet: %+v, %v", k, err)
	}
	process("20", "kubelet", "1", "kubelet\x00--container-runtime-endpoint=unix:///run/crio/crio.sock\x00")
	if k, err := Find(root); err != nil || k.Endpoint() != "unix:///run/crio/crio.sock" {
		t.Errorf("the node's kubelet is %+v, %v", k, err)
	}
}

// For systemd, an indented line can be a comment, or can have a flag.
func TestIndentedFlags(t *testing.T) {
	for text, want := range map[string]string{
		"  # A=--container-runtime-endpoint=unix:///x\n":     "",
		"\t; A=--container-runtime-endpoint=unix:///x\n":     "",
		"  --container-runtime-endpoint=unix:///x\n":         "unix:///x",
		"A=\"--v=2 --container-runtime-endpoint=unix:///x\"": "unix:///x",
	} {
		test.Equal(t, fmt.Sprintf("the flag in %q", text), flagValue(text, endpointFlags[0]), want)
	}
}

// If the kubelet does not run, Find gets the path of its configuration from the unit. Of the files
// in --config-dir, the last one wins.
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
		test.Must(t, root.Put(path, []byte(text), 0o644))
	}
	k := test.Value(Find(root))(t)
	const last = "/etc/kubernetes/kubelet.conf.d/deeper/20.conf"
	if k.Endpoint() != ours || !slices.Equal(k.filesWithBerth(), []string{last}) || k.configs[0].path != "/etc/kubelet.yaml" {
		t.Errorf("got %s from %v; the configuration is %v", k.Endpoint(), k.filesWithBerth(), k.configs)
	}
	test.Equal(t, "HealthAddress", k.HealthAddress(), "127.0.0.1:10300")
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
		k := Kubelet{configs: files(Config, text), arguments: append([]string{"kubelet"}, strings.Fields(c.flags)...)}
		test.Equal(t, fmt.Sprintf("%q %s", text, c.flags), k.HealthAddress(), c.want)
	}
}

// k3s hides its command line. Its flags are in its unit, and it reads several files.
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
				test.Must(t, root.Put(path, []byte(text), 0o644))
			}
			k, err := Find(root)
			if err != nil || k.CheckReleased() == nil || k.Endpoint() != ours {
				t.Errorf("k3s uses %s from %v: %v", k.Endpoint(), k.filesWithBerth(), err)
			}
		})
	}
}
