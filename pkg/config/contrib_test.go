package config

import (
	"os"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/berth-cri/berth/internal/test"
)

func TestCrictlTalksToTheDefaultSocket(t *testing.T) {
	data := test.Value(os.ReadFile("../../contrib/crictl.yaml"))(t)
	for _, key := range []string{"runtime-endpoint", "image-endpoint"} {
		if want := key + ": unix://" + Default().Server.Socket + "\n"; !strings.Contains(string(data), want) {
			t.Errorf("contrib/crictl.yaml lacks %q", want)
		}
	}
}

// TestUnitKeepsPodsAlive checks the settings of the unit that keep pods running.
func TestUnitKeepsPodsAlive(t *testing.T) {
	f := test.Value(os.Open("../../contrib/systemd/berth.service"))(t)
	defer f.Close()
	options := test.Value(unit.DeserializeOptions(f))(t)
	got := map[string]string{}
	for _, o := range options {
		if o.Section == "Service" {
			got[o.Name] = o.Value
		}
	}
	for name, want := range map[string]string{
		"Type": "notify-reload", "KillMode": "process", "Delegate": "yes", "Restart": "always", "TasksMax": "infinity",
		"OOMScoreAdjust": "-999", "WatchdogSec": "60",
		"ExecStart": "/usr/bin/berth serve",
	} {
		test.Equal(t, name, got[name], want)
	}
}

func TestDropInForAgents(t *testing.T) {
	data := test.Value(os.ReadFile("../../contrib/agents/kube-prometheus.toml"))(t)
	n := newNode(t, "runc")
	n.write("config.toml", "version = 1\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
	n.write("conf.d/60-agents.toml", string(data))
	c := n.load()
	if c.ContainerdAPI.Socket != "/run/containerd/containerd.sock" || c.Engine.CgroupPrefix != "cri-containerd" {
		t.Errorf("containerd_api is %+v, cgroup_prefix %q", c.ContainerdAPI, c.Engine.CgroupPrefix)
	}
}
