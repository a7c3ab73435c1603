// Package cdi gives containers devices by the Container Device Interface. Each test writes specs,
// as a vendor does, and looks inside the containers for what the specs add.
package cdi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// bed is a berth whose CDI specs are in a directory of the test.
type bed struct {
	*testbed.Bed
	specs string
	// files is the directory of a device's mounts, marks that of the files that its hooks write.
	files, marks string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{specs: filepath.Join(dir, "specs"), files: filepath.Join(dir, "files"), marks: filepath.Join(dir, "marks")}
	for _, d := range []string{b.files, b.marks} { // the directory of specs may be missing
		testbed.Must(t, os.Mkdir(d, 0o755))
	}
	b.Bed = testbed.StartBed(t, "cdi/busybox:1", testbed.Options{
		Runtimes: map[string]string{
			"runc": testbed.Part(t, testbed.Runc), "crun": testbed.Part(t, testbed.Crun), "runsc": testbed.Part(t, testbed.Runsc),
		},
		DefaultRuntime: "runc",
		Config:         fmt.Sprintf("[engine]\ncdi_spec_dirs = [%q]\n", b.specs),
	})
	return b
}

// write replaces a file atomically, as vendors' tools do.
func write(t *testing.T, path, text string) {
	t.Helper()
	temporary := path + ".new"
	testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil { //nolint:gosec // pods read the file
		t.Fatal(err)
	}
	testbed.Must(t, os.Rename(temporary, path))
}

// device writes a spec of the class vendor.test/<class> with one device, "one". Its device node is
// that of the host at node; its environment, mount and hook have the version.
func (b *bed) device(t *testing.T, class, node, version string) {
	t.Helper()
	write(t, filepath.Join(b.files, class, "version"), version)
	write(t, filepath.Join(b.specs, class+".json"), fmt.Sprintf(`{
  "cdiVersion": "0.6.0", "kind": "vendor.test/%[1]s",
  "containerEdits": {"env": ["OF_ALL_%[1]s=%[4]s"]},
  "devices": [{"name": "one", "containerEdits": {
    "env": ["OF_%[1]s=%[4]s"],
    "deviceNodes": [{"path": "/dev/%[1]s0", "hostPath": %[2]q}],
    "mounts": [{"hostPath": %[3]q, "containerPath": "/opt/%[1]s", "options": ["ro", "nosuid", "nodev", "bind"]}],
    "hooks": [{"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", %[5]q]}]
  }}]
}`, class, node, filepath.Join(b.files, class), version, "cat > "+filepath.Join(b.marks, class+"-"+version)))
}

const byField, byAnnotation = "vendor.test/field=one", "vendor.test/annotated=one"

// asking is a container that requests devices: byAnnotation by an annotation, as older kubelets
// did, and all others by the CRI's field.
func (b *bed) asking(handler string, devices ...string) testbed.PodSpec {
	return testbed.PodSpec{
		Handler: handler, Image: b.Image, Command: []string{"sleep", "3600"},
		Container: func(c *runtimeapi.ContainerConfig) {
			for _, d := range devices {
				if d == byAnnotation {
					c.Annotations = map[string]string{"cdi.k8s.io/plugin_of_test": d}
					continue
				}
				c.CDIDevices = append(c.CDIDevices, &runtimeapi.CDIDevice{Name: d})
			}
		},
	}
}

// shows fails unless the container has everything that the spec of the class adds.
func (b *bed) shows(t *testing.T, c *testbed.Container, class, version string) {
	t.Helper()
	for command, want := range map[string]string{
		"echo $OF_" + class + " $OF_ALL_" + class: version + " " + version,
		"cat /opt/" + class + "/version":          version,
		"touch /opt/" + class + "/new 2>&1; echo": "Read-only file system",
	} {
		if got := strings.TrimSpace(c.Exec(t, "sh", "-c", command)); !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q prints %q, want %q", class, command, got, want)
		}
	}
	mark, err := os.ReadFile(filepath.Join(b.marks, class+"-"+version))
	if err != nil || !strings.Contains(string(mark), c.ID) {
		t.Errorf("%s: the hook was not given the state of container %s: %q, %v", class, c.ID, mark, err)
	}
}

// node fails unless a path in the container is a character device with the given numbers, and
// reads as zeros, as /dev/zero and /dev/full do.
func node(t *testing.T, c *testbed.Container, path, major string) {
	t.Helper()
	if got := strings.TrimSpace(c.Exec(t, "stat", "-c", "%F %t:%T", path)); got != "character special file "+major {
		t.Errorf("%s is %q, want device %s", path, got, major)
	}
	if got := c.TryExec(t, "sh", "-c", "head -c 4 "+path+" | od -An -tx1"); strings.TrimSpace(got.Stdout) != "00 00 00 00" {
		t.Errorf("read %s: %+v, want zeros", path, got)
	}
}

// TestDevices requests devices under every runtime, changes their specs while the daemon runs, and
// requests devices that do not exist.
func TestDevices(t *testing.T) {
	b := newBed(t)
	b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"true"}}).Remove(t)
	b.Restart(t)
	atRest := b.Snapshot(t)

	for _, handler := range []string{"runc", "crun", "runsc"} {
		t.Run(handler, func(t *testing.T) {
			testbed.Must(t, os.RemoveAll(b.specs))
			pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler})
			b.unknown(t, pod, byField, byField, b.specs)

			b.device(t, "field", "/dev/zero", handler+"-1")
			b.device(t, "annotated", "/dev/full", handler+"-1")
			first := pod.RunContainer(t, "first", b.asking(handler, byField, byAnnotation))
			b.shows(t, first, "field", handler+"-1")
			b.shows(t, first, "annotated", handler+"-1")
			node(t, first, "/dev/field0", "1:5")
			node(t, first, "/dev/annotated0", "1:7")
			b.unknown(t, pod, "vendor.test/field=two", "vendor.test/field=two")

			// The daemon gets no call about this change.
			b.device(t, "field", "/dev/full", handler+"-2")
			second := pod.RunContainer(t, "second", b.asking(handler, byField))
			b.shows(t, second, "field", handler+"-2")
			node(t, second, "/dev/field0", "1:7")
			if got := second.TryExec(t, "sh", "-c", "test -e /dev/annotated0 || test -n \"$OF_annotated\""); got.ExitCode != 1 {
				t.Error("a container has a device that it did not ask for")
			}

			broken := filepath.Join(b.specs, "field.json")
			write(t, broken, `{"cdiVersion": "0.6.0", "kind":`)
			b.unknown(t, pod, byField, byField, broken)
			testbed.Must(t, os.Remove(broken))
			b.unknown(t, pod, byField, byField)
			b.device(t, "field", "/dev/there-is-none", handler+"-3")
			b.unknown(t, pod, byField, "/dev/there-is-none")

			// A container that has a device keeps it.
			second.Stop(t, 0)
			b.shows(t, first, "annotated", handler+"-1")
			pod.Remove(t)
		})
	}
	b.Restart(t) // stops idle supervisors
	b.NoLeaks(t, atRest)
}

// unknown fails unless a container with the device is refused with these texts and is not listed.
// Afterwards a container of the same name, without the device, can be created.
func (b *bed) unknown(t *testing.T, pod *testbed.Pod, device string, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	spec := b.asking(pod.Handler, device)
	config := b.Client.ContainerConfig("refused", spec.Image, spec.Command...)
	spec.Container(config)
	_, err := b.Client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: config, SandboxConfig: pod.Config})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a container with the device %s: %v, want FailedPrecondition", device, err)
	}
	for _, text := range texts {
		if !strings.Contains(status.Convert(err).Message(), text) {
			t.Errorf("the error lacks %q: %v", text, err)
		}
	}
	list, err := b.Client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod.ID}})
	testbed.Must(t, err)
	for _, c := range list.GetContainers() {
		if c.GetMetadata().GetName() == "refused" {
			t.Errorf("the refused container is listed: %v", c)
		}
	}
	pod.CreateContainer(t, "refused", testbed.PodSpec{Image: b.Image, Command: []string{"true"}}).Remove(t)
}
