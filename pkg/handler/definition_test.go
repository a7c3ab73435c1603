package handler

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

func full() *Definition {
	return &Definition{
		Name: "kata", Type: Shim, Path: "/bin/containerd-shim-kata-v2", Endpoint: "/e", RemoteHandler: "rh", Root: "/r", ConfigPath: "/c",
		OCI:         OCIOptions{NoPivotRoot: true, NoNewKeyring: true, GlobalFlags: []string{"--debug"}},
		ShimOptions: map[string]any{"Root": "/x"}, ShimOptionsTOML: "a = 1\n", ShimOptionsType: "a.b",
		Companions: []string{"parts"}, PodAnnotations: []string{"a*"}, ContainerAnnotations: []string{"b*"}, DefaultAnnotations: map[string]string{"c": "d"},
		PrivilegedWithoutHostDevices: true, Snapshotter: "native", Platform: "wasi/wasm", BaseRuntimeSpec: "/s", CNIConfDir: "/n",
		ContainerCreateTimeout: time.Minute, SandboxProcess: SandboxProcessAlways, Supervision: SupervisionPod,
		Limits:    Limits{MaxPods: 4, MaxParallelStarts: 3, MaxQueuedStarts: 2, StartTimeout: time.Second},
		AliasOf:   "other",
		Candidate: &Candidate{Path: "/next", Percent: 10}, Binary: BinaryCandidate,
		RequiredDevices: []string{"/dev/kvm"}, ProbeSelfCheck: true, SelfCheckTimeout: time.Minute, Conforms: []string{"sandboxed/v1"},
		Origin: "/etc/berth/config.toml:3",
	}
}

// TestStoredForm fails if a field is not stored with a sandbox.
func TestStoredForm(t *testing.T) {
	d := full()
	v := reflect.ValueOf(*d)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("full does not set %s", v.Type().Field(i).Name)
		}
	}
	b := test.Value(json.Marshal(d))(t)
	var again Definition
	test.Must(t, json.Unmarshal(b, &again))
	if !reflect.DeepEqual(d, &again) {
		t.Errorf("stored %+v, loaded %+v", d, &again)
	}
	if d.Digest() != again.Digest() {
		t.Error("the stored definition has another digest")
	}
}

func TestDigest(t *testing.T) {
	base := full().Digest()
	moved := full()
	moved.Origin = "elsewhere"
	if moved.Digest() != base {
		t.Error("the digest depends on the origin")
	}
	v := reflect.TypeFor[Definition]()
	for i := range v.NumField() {
		name := v.Field(i).Name
		if name == "Origin" {
			continue
		}
		d := full()
		f := reflect.ValueOf(d).Elem().Field(i)
		f.SetZero()
		if d.Digest() == base {
			t.Errorf("the digest does not cover %s", name)
		}
	}
}

func TestDefinitionInContext(t *testing.T) {
	if DefinitionFrom(context.Background()) != nil {
		t.Error("an empty context has a definition")
	}
	d := full()
	if DefinitionFrom(WithDefinition(context.Background(), d)) != d {
		t.Error("the context lost the definition")
	}
}
