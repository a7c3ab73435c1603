package container

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/log"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// A container's spec starts from the base_runtime_spec of its handler.
func TestSpecStartsFromTheBase(t *testing.T) {
	dir := t.TempDir()
	d := &handler.Definition{Name: "runc", Type: handler.OCI, Path: filepath.Join(dir, "runc"), BaseRuntimeSpec: filepath.Join(dir, "base.json")}
	put(t, d.BaseRuntimeSpec, `{"ociVersion":"1.0.2","process":{"rlimits":[{"type":"RLIMIT_CORE","soft":1,"hard":2}]}}`)
	script := put(t, d.Path+".new", "#!/bin/sh\n[ \"$1\" = --version ] && echo runc version 1.5.2 && echo spec: 1.2.1\n")
	// The rename publishes the script only when it is complete and executable.
	test.Must(t, errors.Join(os.Chmod(script, 0o700), os.Rename(script, d.Path)))
	pods, _, err := pod.Open(t.Context(), t.TempDir(), dir)
	test.Must(t, err)
	b := &specifier{Deps{
		Pods: pods, Settings: &settings.Settings{}, Rootfs: rootfs.New(pods, nil),
		Binaries: &binaries.Binaries{Prober: probe.New(nil), Runtimes: binaries.NewRuntimes(nil, log.L)},
	}}
	of := pod.SandboxSpec{Definition: d, Pinned: test.Value(b.Settings.Pin(d))(t)}
	host := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE}
	of.Config.Msg = &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: host},
	}}
	c := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), of, &enginetest.Runner{}))
	test.Must(t, os.MkdirAll(filepath.Join(pods.ContainerDir(c.ID()), "rootfs"), 0o700))
	spec, _, err := b.buildSpec(t.Context(), c, &catalog.Image{Config: imagespec.ImageConfig{Cmd: []string{"sh"}}}, nil, test.Value(b.Binaries.Prober.Probe(t.Context(), d))(t))
	test.Must(t, err)
	if r := spec.Process.Rlimits; len(r) != 1 || r[0].Type != "RLIMIT_CORE" {
		t.Errorf("rlimits are %v, want those of the base", r)
	}
}
