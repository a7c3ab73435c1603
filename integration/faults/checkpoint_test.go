package faults

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// counting is a script that counts in /count and in its log. It replaces /count by a rename, so
// that the file is never empty.
const counting = "i=0; while :; do i=$((i+1)); echo $i >/next; mv /next /count; echo line $i; sleep 0.05; done"

// withCRIU restarts berth with a PATH in which criu is the given program.
func (b *bed) withCRIU(t *testing.T, program string) {
	t.Helper()
	dir := t.TempDir()
	testbed.Must(t, os.Symlink(program, filepath.Join(dir, "criu")))
	b.SetEnvironment("PATH=" + dir + ":" + os.Getenv("PATH"))
	b.Restart(t)
}

func (b *bed) checkpoint(t *testing.T, container, location string, seconds int64) error {
	t.Helper()
	_, err := b.Client.CheckpointContainer(testbed.Within(t, 2*time.Minute), &runtimeapi.CheckpointContainerRequest{
		ContainerId: container, Location: location, Timeout: seconds,
	})
	return err
}

// goesOn waits until the container has counted on.
func goesOn(t *testing.T, c *testbed.Container) {
	t.Helper()
	count := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(c.Exec(t, "sh", "-c", "until [ -s /count ]; do sleep 0.01; done; cat /count")))
		if err != nil {
			return -1 // the output is not a number
		}
		return n
	}
	before := count()
	testbed.Eventually(t, time.Minute, func() error {
		if now := count(); now <= before {
			return fmt.Errorf("the container does not count on from %d", now)
		}
		return nil
	})
}

// noUnfinished fails the test if temporary files of a checkpoint are left.
func (b *bed) noUnfinished(t *testing.T, locations string) {
	t.Helper()
	for _, dir := range []string{filepath.Join(b.Root, "checkpoints", "*"), filepath.Join(locations, ".*")} {
		if left, _ := filepath.Glob(dir); len(left) > 0 {
			t.Errorf("temporary files are left: %v", left)
		}
	}
}

// members returns the contents of an archive's files by name.
func members(t *testing.T, archive io.Reader) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		testbed.Mustf(t, err, "read archive")
		body, err := io.ReadAll(r)
		testbed.Mustf(t, err, "read %s of the archive", h.Name)
		all[strings.TrimSuffix(h.Name, "/")] = body
	}
}

// TestCheckpoint checks the archive of a checkpointed container, which runs on. If
// the installed criu does not work with the kernel, it checks the error instead.
func TestCheckpoint(t *testing.T) {
	criu := testbed.Part(t, testbed.CRIU)
	why := testbed.CRIUUnfit(t, criu)
	if why != "" {
		t.Logf("%s does not work with this kernel: %s", criu, why)
	}
	runc := "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n"
	for name, config := range map[string]string{"runc": runc, "shim": shimConfig(t, testbed.Part(t, testbed.RuncShim))} {
		for _, tty := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s terminal %v", name, tty), func(t *testing.T) {
				b := newBed(t, testbed.Options{Config: config})
				b.withCRIU(t, criu)
				if why != "" {
					b.noArchiveOf(t, tty, why)
					return
				}
				b.archiveOf(t, tty)
			})
		}
	}
}

// noArchiveOf requests checkpoints from a criu that does not work with the kernel.
// Each error must have criu's reason, the container must run on, and no file may be
// left.
func (b *bed) noArchiveOf(t *testing.T, tty bool, why string) {
	t.Helper()
	pod := b.Client.RunPod(t, testbed.PodSpec{
		Image: b.Image, Command: []string{"sh", "-c", counting},
		Container: func(c *runtimeapi.ContainerConfig) { c.Tty = tty },
	})
	goesOn(t, pod.Container)
	pid := b.info(t, pod.Container.ID).PID
	locations := t.TempDir()
	for range 2 {
		testbed.Refused(t, b.checkpoint(t, pod.Container.ID, filepath.Join(locations, "a.tar"), 60), codes.Unknown, "checkpoint container", why)
		goesOn(t, pod.Container)
		testbed.Same(t, b.info(t, pod.Container.ID).PID, pid, "the pid of the container is")
	}
	b.noUnfinished(t, locations)
	if left, _ := os.ReadDir(locations); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	pod.Remove(t)
}

func (b *bed) archiveOf(t *testing.T, tty bool) {
	image := b.Registry.Push(t, "faults/checkpoint:1", testbed.Busybox(t, testbed.WithLayer(
		testbed.File{Path: "dir/old", Mode: 0o644, Body: []byte("old")}, testbed.File{Path: "gone", Mode: 0o644, Body: []byte("x")},
	)))
	pod := b.Client.RunPod(t, testbed.PodSpec{
		Image: image, Command: []string{"sh", "-c", counting},
		Container: func(c *runtimeapi.ContainerConfig) { c.Tty = tty },
	})
	c := pod.Container
	c.Exec(t, "sh", "-c", "rm -r /gone /dir; mkdir /dir; echo new >/dir/new")
	goesOn(t, c)
	pid := b.info(t, c.ID).PID
	locations := t.TempDir()
	for _, name := range []string{"first.tar", "second.tar"} {
		location := filepath.Join(locations, name)
		testbed.Mustf(t, b.checkpoint(t, c.ID, location, 60), "checkpoint")
		goesOn(t, c)
		testbed.Same(t, b.info(t, c.ID).PID, pid, "the pid of the container is")
		checkArchive(t, location, c.ID)
	}
	b.noUnfinished(t, locations)
	c.Stop(t, time.Second)
	testbed.Refused(t, b.checkpoint(t, c.ID, filepath.Join(locations, "exited.tar"), 60), codes.FailedPrecondition, "exited", "running")
	pod.Remove(t)
}

func checkArchive(t *testing.T, location, id string) {
	t.Helper()
	info, err := os.Stat(location)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("archive: %v, %v, want a file of mode 0600", info, err)
	}
	f, err := os.Open(location)
	testbed.Must(t, err)
	defer f.Close()
	files := members(t, f)
	for _, name := range []string{
		metadata.SpecDumpFile, metadata.StatusDumpFile, metadata.DumpLogFile, "container.log",
		"checkpoint/inventory.img", "checkpoint/pstree.img", "checkpoint/core-1.img", "checkpoint/pages-1.img",
	} {
		if len(files[name]) == 0 {
			t.Errorf("%s is missing from the archive or empty", name)
		}
	}
	var config metadata.ContainerConfig
	if err := json.Unmarshal(files[metadata.ConfigDumpFile], &config); err != nil || config.ID != id || config.OCIRuntime == "" ||
		!strings.HasSuffix(config.RootfsImageName, "/faults/checkpoint:1") || time.Since(config.CheckpointedAt) > time.Hour {
		t.Errorf("%s: %+v, %v", metadata.ConfigDumpFile, config, err)
	}
	changed := members(t, bytes.NewReader(files[metadata.RootFsDiffTar]))
	if string(changed["dir/new"]) != "new\n" || len(changed["count"]) == 0 {
		t.Errorf("the changed files are %q", changed)
	}
	for name := range changed {
		if strings.Contains(name, "gone") || strings.Contains(name, "old") || strings.Contains(name, ".wh.") {
			t.Errorf("a removed file is among the changed files: %s", name)
		}
	}
	var deleted []string
	if err := json.Unmarshal(files[metadata.DeletedFilesFile], &deleted); err != nil || !slices.Equal(deleted, []string{"dir/old", "gone"}) {
		t.Errorf("deleted files are %q, %v", deleted, err)
	}
}

// TestFailingCheckpoints: if criu fails or hangs, the container runs on, and no
// complete or partial archive is left.
func TestFailingCheckpoints(t *testing.T) {
	hangs := filepath.Join(t.TempDir(), "hangs")
	testbed.Must(t, os.WriteFile(hangs, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755))
	for name, c := range map[string]struct {
		criu    string
		seconds int64
		code    codes.Code
		says    []string
	}{
		"fails": {"/bin/false", 60, codes.Unknown, []string{"checkpoint container", "criu"}},
		"hangs": {hangs, 2, codes.DeadlineExceeded, []string{"took longer than 2s"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, testbed.Options{})
			b.withCRIU(t, c.criu)
			pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counting}})
			locations := t.TempDir()
			testbed.Refused(t, b.checkpoint(t, pod.Container.ID, filepath.Join(locations, "a.tar"), c.seconds), c.code, c.says...)
			goesOn(t, pod.Container)
			b.noUnfinished(t, locations)
			if left, _ := os.ReadDir(locations); len(left) > 0 {
				t.Errorf("files are left: %v", left)
			}
		})
	}
}

// withoutCRIU returns the handlers that do not support checkpoints, with the text of
// the reason.
func withoutCRIU(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"gvisor": "separate kernel"}
	if !testbed.CrunHasCRIU(t) {
		all["crun"] = "support for CRIU"
	}
	return all
}

// advice is the text of a refusal about other handlers. Handlers with less isolation
// must not be named.
var advice = map[string]string{"crun": "use a handler that supports it (runc)", "gvisor": "no ready handler of this node with a kernel for each pod supports it"}

// TestRefusedCheckpoints requests checkpoints that must be refused before criu runs.
func TestRefusedCheckpoints(t *testing.T) {
	b := newBed(t, testbed.Options{Runtimes: map[string]string{
		"runc": testbed.Part(t, testbed.Runc), "crun": testbed.Part(t, testbed.Crun), "gvisor": testbed.Part(t, testbed.Runsc),
	}, DefaultRuntime: "runc"})
	b.withCRIU(t, "/bin/false")
	dir := t.TempDir()
	location := filepath.Join(dir, "a.tar")
	run := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}})
	created := run.CreateContainer(t, "created", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}})
	id := run.Container.ID
	testbed.Refused(t, b.checkpoint(t, "", location, 0), codes.InvalidArgument, "the container ID is empty")
	testbed.Refused(t, b.checkpoint(t, id, "", 0), codes.InvalidArgument, "location")
	testbed.Refused(t, b.checkpoint(t, id, "a.tar", 0), codes.InvalidArgument, "location", "absolute")
	testbed.Refused(t, b.checkpoint(t, id, filepath.Join(dir, "none", "a.tar"), 0), codes.InvalidArgument, "directory")
	testbed.Refused(t, b.checkpoint(t, id, location, -1), codes.InvalidArgument, "timeout")
	testbed.Refused(t, b.checkpoint(t, strings.Repeat("0", 64), location, 0), codes.NotFound)
	testbed.Refused(t, b.checkpoint(t, created.ID, location, 0), codes.FailedPrecondition, "created", "running")
	for handler, why := range withoutCRIU(t) {
		other := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sleep", "1000"}})
		testbed.Refused(t, b.checkpoint(t, other.Container.ID, location, 0), codes.FailedPrecondition, handler, why, advice[handler])
	}
	mapped := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}, Sandbox: withUserNS, Container: func(c *runtimeapi.ContainerConfig) {
		p := b.Client.SandboxConfig("x")
		withUserNS(p)
		c.Linux.SecurityContext.NamespaceOptions = p.GetLinux().GetSecurityContext().GetNamespaceOptions()
	}})
	testbed.Refused(t, b.checkpoint(t, mapped.Container.ID, location, 0), codes.FailedPrecondition, "user namespace")

	b.SetEnvironment("PATH=/nowhere")
	b.Restart(t)
	testbed.Refused(t, b.checkpoint(t, id, location, 0), codes.FailedPrecondition, "install the package criu")
	b.SetEnvironment() // the removal of pods needs the network's programs from the PATH
	b.Restart(t)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// TestKilledWhileFrozen kills the daemon while a container is frozen for its
// checkpoint. The next daemon thaws the container.
func TestKilledWhileFrozen(t *testing.T) {
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counting}})
	b.Stop(t)
	// The daemon is killed before it runs criu, but it refuses a checkpoint if criu is missing.
	criu := filepath.Join(t.TempDir(), "criu")
	testbed.Must(t, os.Symlink("/bin/false", criu))
	b.SetEnvironment("BERTH_FAILPOINT="+failpoint.ContainerFrozen, "PATH="+filepath.Dir(criu)+":"+os.Getenv("PATH"))
	b.Start(t)
	locations := t.TempDir()
	testbed.Refused(t, b.checkpoint(t, pod.Container.ID, filepath.Join(locations, "a.tar"), 60), codes.Unavailable)
	b.Wait(t, time.Minute)
	b.SetEnvironment()
	b.Start(t)
	goesOn(t, pod.Container)
	b.noUnfinished(t, locations)
}
