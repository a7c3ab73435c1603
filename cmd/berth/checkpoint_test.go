package main

import (
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/retention"
)

func TestExpired(t *testing.T) {
	now := time.Now()
	at := func(name string, hours int) listedCheckpoint {
		return listedCheckpoint{Namespace: "n", Name: name, Directory: name + strings.Repeat("x", hours), Created: now.Add(-time.Duration(hours) * time.Hour), Runtime: "runsc"}
	}
	got := expired([]listedCheckpoint{at("a", 1), at("b", 2), at("a", 3), at("a", 5)}, retention.Bounds{Keep: 1}, now)
	if len(got) != 2 || got[0].Directory != "axxxxx" || got[1].Directory != "axxx" || got[1].Runtime != "runsc" {
		t.Errorf("gone are %v", got)
	}
}

func TestRequestOfACheckpoint(t *testing.T) {
	pod, err := manifest.Encode(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "old", Attempt: 3}, Hostname: "p", LogDirectory: "/var/log/pods/old",
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/old"},
	})
	if err != nil {
		t.Fatal(err)
	}
	container, err := manifest.Encode(&runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Command: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	m := &manifest.Manifest{Handler: manifest.Handler{Name: "gvisor"}, Pod: pod, Containers: []manifest.Container{{Name: "main", Config: container}}}
	for name, c := range map[string]struct {
		as   restored
		want [5]string // name, namespace, uid, handler, logs
	}{
		"as it was":   {restored{uid: "new"}, [5]string{"p", "n", "new", "gvisor", "/var/log/pods/n_p_new"}},
		"as another":  {restored{name: "q", namespace: "m", uid: "u", handler: "h", logs: "/l"}, [5]string{"q", "m", "u", "h", "/l"}},
		"another UID": {restored{name: "q", logs: "/l"}, [5]string{"q", "n", "", "gvisor", "/l"}},
	} {
		r, err := requestOf(m, &c.as)
		if err != nil {
			t.Fatal(err)
		}
		md := r.GetConfig().GetMetadata()
		if c.want[2] == "" && md.GetUid() != "" && md.GetUid() != "old" {
			c.want[2] = md.GetUid()
		}
		if got := [5]string{md.GetName(), md.GetNamespace(), md.GetUid(), r.GetRuntimeHandler(), r.GetConfig().GetLogDirectory()}; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if md.GetAttempt() != 0 || r.GetConfig().GetLinux().GetCgroupParent() != "" || len(r.GetContainerConfigs()) != 1 || r.GetContainerConfigs()[0].GetCommand()[0] != "x" {
			t.Errorf("%s: %v", name, r)
		}
	}
}
