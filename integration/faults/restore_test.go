package faults

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// restoring starts berth so that it may restore checkpoint images whose name begins with warm.
func restoring(t *testing.T, criu string, o testbed.Options) *bed {
	t.Helper()
	if o.Config == "" {
		o.Config = "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n"
	}
	o.Config += "[registry]\ncheckpoint_images = [\"*/warm*\"]\n"
	b := newBed(t, o)
	b.withCRIU(t, criu)
	return b
}

// imageOf checkpoints c, pushes the checkpoint as an image, and pulls the image.
func (b *bed) imageOf(t *testing.T, c *testbed.Container, name string) string {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "checkpoint-"+name+".tar")
	testbed.Mustf(t, b.checkpoint(t, c.ID, archive, 60), "checkpoint")
	image := b.Registry.Push(t, "faults/"+name+":1", testbed.CheckpointImage(t, archive))
	b.Client.Pull(t, "", image)
	return image
}

// create creates a container in a new sandbox.
func (b *bed) create(t *testing.T, spec testbed.PodSpec) (*testbed.Pod, string, error) {
	t.Helper()
	pod := b.Client.RunSandbox(t, spec)
	config := b.Client.ContainerConfig("main", spec.Image, spec.Command...)
	if spec.Container != nil {
		spec.Container(config)
	}
	r, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: config, SandboxConfig: pod.Config})
	return pod, r.GetContainerId(), err
}

// counted is the current number of a container that runs counting.
func counted(t *testing.T, c *testbed.Container) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(c.Exec(t, "sh", "-c", "until [ -s /count ]; do sleep 0.01; done; cat /count")))
	testbed.Mustf(t, err, "read the count")
	return n
}

// noRestores fails the test if files of a restore, which have a container's memory, are left.
func (b *bed) noRestores(t *testing.T) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(b.Root, "restores", "*")); len(left) > 0 {
		t.Errorf("files of restores are left: %v", left)
	}
}

// TestRestore restores containers in other pods, from images of their checkpoints.
func TestRestore(t *testing.T) {
	criu := testbed.FittingCRIU(t)
	runc := "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n"
	crun := "default_runtime = \"crun\"\n[runtimes.crun]\nruntime_path = \"" + testbed.Part(t, testbed.Crun) + "\"\n[runtimes.crun.options]\nno_pivot_root = true\n"
	for name, c := range map[string]struct {
		config string
		tty    bool
		pid    runtimeapi.NamespaceMode
	}{
		"plain":           {runc, false, runtimeapi.NamespaceMode_CONTAINER},
		"terminal":        {runc, true, runtimeapi.NamespaceMode_CONTAINER},
		"sandbox process": {runc + "sandbox_process = \"always\"\n", false, runtimeapi.NamespaceMode_CONTAINER},
		"crun":            {crun, false, runtimeapi.NamespaceMode_CONTAINER},
		"crun terminal":   {crun, true, runtimeapi.NamespaceMode_CONTAINER},
		"sync_rootfs":     {runc + "[engine]\nsync_rootfs = true\n", false, runtimeapi.NamespaceMode_CONTAINER},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "crun") && !testbed.CrunHasCRIU(t) {
				t.Skip("crun was built without CRIU")
			}
			b := restoring(t, criu, testbed.Options{Config: c.config})
			b.goesOnElsewhere(t, "", "", func(config *runtimeapi.ContainerConfig) { config.Tty = c.tty })
		})
	}
}

// TestRestoreOfOthers restores containers under another handler or containerd's shim. Handlers
// differ in the standard streams of containers: those of the shim are unnamed pipes.
func TestRestoreOfOthers(t *testing.T) {
	criu := testbed.FittingCRIU(t)
	shim := shimConfig(t, testbed.Part(t, testbed.RuncShim))
	config := shim + "[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n[runtimes.crun]\nruntime_path = \"" + testbed.Part(t, testbed.Crun) + "\"\n"
	for name, c := range map[string]struct {
		from, to string
		tty      bool
	}{
		"shim to runc":          {"", "runc", false},
		"shim to runc terminal": {"", "runc", true},
		"runc to shim":          {"runc", "", false},
		"shim to shim":          {"", "", false},
		"shim to shim terminal": {"", "", true},
		"runc to crun":          {"runc", "crun", false},
		"crun to runc":          {"crun", "runc", false},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "crun") && !testbed.CrunHasCRIU(t) {
				t.Skip("crun was built without CRIU")
			}
			b := restoring(t, criu, testbed.Options{Config: config})
			b.goesOnElsewhere(t, c.from, c.to, func(config *runtimeapi.ContainerConfig) { config.Tty = c.tty })
		})
	}
}

// goesOnElsewhere checkpoints a container of one handler, and restores it twice under the other.
func (b *bed) goesOnElsewhere(t *testing.T, from, to string, container func(*runtimeapi.ContainerConfig)) {
	t.Helper()
	base := b.Registry.Push(t, "faults/counting:1", testbed.Busybox(t, testbed.WithLayer(
		testbed.File{Path: "dir/old", Mode: 0o644, Body: []byte("old")}, testbed.File{Path: "gone", Mode: 0o644, Body: []byte("x")},
	)))
	first := b.Client.RunPod(t, testbed.PodSpec{Handler: from, Image: base, Command: []string{"sh", "-c", counting}, Container: container})
	first.Container.Exec(t, "sh", "-c", "rm -r /gone /dir; mkdir /dir; echo new >/dir/new; ln -s /etc /link; mkfifo /fifo")
	goesOn(t, first.Container)
	image := b.imageOf(t, first.Container, "warm")
	at := counted(t, first.Container)
	first.Remove(t)
	atRest := b.Rest(t)

	for range 2 { // a checkpoint can be restored any number of times
		pod, id, err := b.create(t, testbed.PodSpec{Handler: to, Image: image, Container: container})
		testbed.Mustf(t, err, "create")
		c := b.Client.Container(id, filepath.Join(pod.Config.GetLogDirectory(), "main", "0.log"))
		c.Start(t)
		b.noRestores(t)
		goesOn(t, c)
		if n := counted(t, c); n < at/2 || n > at+1000 {
			t.Errorf("the restored container has counted to %d, but to %d before the checkpoint", n, at)
		}
		testbed.Same(t, c.Exec(t, "sh", "-c", "ls -d /gone /dir/old 2>/dev/null; cat /dir/new; readlink /link; [ -p /fifo ] && echo fifo; true"), "new\n/etc\nfifo\n", "files of the restored container:")
		// The processes are in the cgroup of the new container.
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", b.info(t, id).PID))
		if err != nil || !bytes.Contains(group, []byte(id)) || bytes.Contains(group, []byte(first.Container.ID)) {
			t.Errorf("the process is not in the new container's cgroup: %s, %v", group, err)
		}
		st := c.Status(t)
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || !strings.Contains(st.GetImage().GetImage(), "faults/counting:1") {
			t.Errorf("the restored container is %s of image %s, want RUNNING of the base image", st.GetState(), st.GetImage().GetImage())
		}
		testbed.Eventually(t, time.Minute, func() error {
			log, err := os.ReadFile(c.LogPath)
			if err == nil && !bytes.Contains(log, []byte("line ")) {
				err = fmt.Errorf("the log is %q", log)
			}
			return err
		})
		c.Stop(t, time.Second)
		if st := c.Status(t); st.GetExitCode() != 137 && st.GetExitCode() != 143 {
			t.Errorf("the stopped container exited with %d, %s", st.GetExitCode(), st.GetReason())
		}
		pod.Remove(t)
		b.NothingLeft(t, atRest)
	}
}

// TestRefusedRestores requests restores that are not allowed or not possible.
func TestRefusedRestores(t *testing.T) {
	b := newBed(t, testbed.Options{Runtimes: map[string]string{
		"runc": testbed.Part(t, testbed.Runc), "crun": testbed.Part(t, testbed.Crun), "gvisor": testbed.Part(t, testbed.Runsc),
	}, DefaultRuntime: "runc"})
	b.withCRIU(t, "/bin/true")
	image := b.pushCheckpoint(t, "warm", part{"config.dump", configDump("x@sha256:" + strings.Repeat("0", 64))}, part{"spec.dump", "{}"}, part{"checkpoint/descriptors.json", "[]"})
	for _, handler := range []string{"runc", "crun", "gvisor"} {
		b.Client.Pull(t, handler, image)
	}
	atRest := b.Rest(t)
	refused := func(spec testbed.PodSpec, code codes.Code, says ...string) {
		t.Helper()
		pod, _, err := b.create(t, spec)
		testbed.Refused(t, err, code, says...)
		pod.Remove(t)
		b.noRestores(t)
		b.NothingLeft(t, atRest)
	}
	refused(testbed.PodSpec{Image: image}, codes.PermissionDenied, "registry.checkpoint_images", image)
	b.DropIn(t, "50-allowed.toml", "[registry]\ncheckpoint_images = [\""+b.Registry.Host+"/other/*\"]\n")
	b.Restart(t)
	refused(testbed.PodSpec{Image: image}, codes.PermissionDenied, "registry.checkpoint_images", image)
	b.DropIn(t, "50-allowed.toml", "[registry]\ncheckpoint_images = [\""+b.Registry.Host+"/faults/*\"]\n")
	b.Restart(t)
	refused(testbed.PodSpec{Image: image, Command: []string{"sh"}}, codes.FailedPrecondition, "x@sha256:000", "not on this node", "pull it by that digest")
	for handler, why := range withoutCRIU(t) {
		refused(testbed.PodSpec{Handler: handler, Image: image}, codes.FailedPrecondition, handler, why, advice[handler])
	}
	refused(testbed.PodSpec{Image: image, Sandbox: withUserNS, Container: func(c *runtimeapi.ContainerConfig) {
		p := b.Client.SandboxConfig("x")
		withUserNS(p)
		c.Linux.SecurityContext.NamespaceOptions = p.GetLinux().GetSecurityContext().GetNamespaceOptions()
	}}, codes.FailedPrecondition, "user namespace")
}

// part is a file of an archive.
type part struct{ name, text string }

func configDump(ref string) string {
	text, _ := json.Marshal(map[string]string{"name": "main", "rootfsImageRef": ref})
	return string(text)
}

// pushCheckpoint pushes a checkpoint image with these parts. A text "-> path" makes a symbolic
// link, "= path" a hard link.
func (b *bed) pushCheckpoint(t *testing.T, name string, parts ...part) string {
	t.Helper()
	files := []testbed.File{{Path: "checkpoint", Mode: fs.ModeDir | 0o700}}
	for _, p := range parts {
		f := testbed.File{Path: p.name, Mode: 0o600, Body: []byte(p.text)}
		if to, is := strings.CutPrefix(p.text, "-> "); is {
			f.Mode, f.Body, f.Link = fs.ModeSymlink|0o777, nil, to
		}
		if to, is := strings.CutPrefix(p.text, "= "); is {
			f.Body, f.Link = nil, to
		}
		files = append(files, f)
	}
	image := mutate.Annotations(testbed.Image(t, testbed.WithLayer(files...)), map[string]string{"org.criu.checkpoint.container.name": "main"}).(v1.Image)
	return b.Registry.Push(t, "faults/"+name+":1", image)
}

// tarOf is a tar file of these headers. Linkname is the content of a regular file.
func tarOf(t *testing.T, headers ...*tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		body := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		testbed.Must(t, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	testbed.Must(t, w.Close())
	return out.String()
}

// TestHostileCheckpoints: the restore of a malicious archive fails without reading or writing files
// of the host, and leaves nothing.
func TestHostileCheckpoints(t *testing.T) {
	b := restoring(t, "/bin/true", testbed.Options{})
	outside := filepath.Join(t.TempDir(), "outside")
	testbed.Must(t, os.WriteFile(outside, []byte("kept"), 0o600))
	ref := b.Client.Pull(t, "", b.Image)
	good := func(changed ...part) []part {
		all := []part{{"config.dump", configDump(ref)}, {"spec.dump", "{}"}, {"checkpoint/descriptors.json", "[]"}, {"checkpoint/pages-1.img", "x"}}
		for _, c := range changed {
			i := 0
			for i < len(all) && all[i].name != c.name {
				i++
			}
			all = append(all[:i], append([]part{c}, all[min(i+1, len(all)):]...)...)
		}
		return all
	}
	up := strings.Repeat("../", 20)
	atRest := b.Rest(t)
	for name, c := range map[string]struct {
		parts []part
		says  string
	}{
		"no config.dump":               {[]part{{"other", "x"}}, "config.dump"},
		"configuration is not JSON":    {good(part{"config.dump", "x"}), "config.dump"},
		"large configuration":          {good(part{"config.dump", `{"name":"` + strings.Repeat("x", 2<<20) + `"}`}), "larger than"},
		"configuration is a link":      {good(part{"config.dump", "-> " + outside}), "config.dump"},
		"base image without a digest":  {good(part{"config.dump", configDump(b.Image)}), "digest"},
		"spec is a link":               {good(part{"spec.dump", "-> " + up + outside}), "spec.dump"},
		"deeply nested spec":           {good(part{"spec.dump", strings.Repeat("[", 1<<19)}), "spec.dump"},
		"many streams":                 {good(part{"checkpoint/descriptors.json", `["pipe:[1]","pipe:[2]","pipe:[3]","pipe:[4]"]`}), "standard streams"},
		"CRIU file is a symbolic link": {good(part{"checkpoint/pages-1.img", "-> " + outside}), "pages-1.img"},
		"CRIU file is a hard link":     {good(part{"checkpoint/pages-2.img", "= checkpoint/pages-1.img"}), "hard links"},
		"CRIU file is a directory":     {good(part{"checkpoint/dir/x", "x"}), "checkpoint/dir"},
		"no CRIU files":                {[]part{{"config.dump", configDump(ref)}, {"spec.dump", "{}"}}, "checkpoint"},
		"changed files are a link":     {good(part{"rootfs-diff.tar", "-> " + outside}), "rootfs-diff.tar"},
		"changed files are not a tar":  {good(part{"rootfs-diff.tar", strings.Repeat("x", 1024)}), "rootfs-diff.tar"},
		"a device":                     {good(part{"rootfs-diff.tar", tarOf(t, &tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8})}), "device"},
		"changed file outside":         {good(part{"rootfs-diff.tar", tarOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: up + outside, Linkname: "x"})}), "leads out"},
		"hard link to a file outside":  {good(part{"rootfs-diff.tar", tarOf(t, &tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: up + outside})}), "leads out"},
		"removed file outside":         {good(part{"deleted.files", `["` + up + outside + `"]`}), "leads out"},
		"all files removed":            {good(part{"deleted.files", `["/"]`}), "leads out"},
		"large list of removed files":  {good(part{"deleted.files", `["` + strings.Repeat("x", 9<<20) + `"]`}), "larger than"},
		"spec with a terminal":         {good(part{"spec.dump", `{"process":{"terminal":true}}`}), "tty: true"},
	} {
		t.Run(name, func(t *testing.T) {
			tag := "warm-" + strings.Trim(strings.ReplaceAll(strings.ToLower(name), " ", "-"), ".-")
			image := b.pushCheckpoint(t, tag, c.parts...)
			b.Client.Pull(t, "", image)
			pod, _, err := b.create(t, testbed.PodSpec{Image: image, Command: []string{"sh"}})
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("create returned %v, want an error of one line with %q", err, c.says)
			}
			pod.Remove(t)
			b.noRestores(t)
			if _, err := b.Client.RemoveImage(testbed.Within(t, time.Minute), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
				t.Error(err)
			}
			b.NothingLeft(t, atRest)
			if text, err := os.ReadFile(outside); string(text) != "kept" {
				t.Errorf("the file of the host was changed: %q, %v", text, err)
			}
		})
	}
}

// TestFilesOfHostileCheckpoints restores changed files below a link that leads to a directory of
// the host. Nothing may be created or removed there.
func TestFilesOfHostileCheckpoints(t *testing.T) {
	b := restoring(t, "/bin/true", testbed.Options{})
	outside := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(outside, "kept"), []byte("kept"), 0o600))
	image := b.pushCheckpoint(t, "warm",
		part{"config.dump", configDump(b.Client.Pull(t, "", b.Image))},
		part{"spec.dump", `{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/x"}]}}`}, part{"checkpoint/descriptors.json", "[]"},
		part{"rootfs-diff.tar", tarOf(t,
			&tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: outside},
			&tar.Header{Typeflag: tar.TypeReg, Name: "out/made", Linkname: "x"},
			&tar.Header{Typeflag: tar.TypeReg, Name: "out/.wh.kept"},
		)},
		part{"deleted.files", `["out/kept", "out/other"]`})
	b.Client.Pull(t, "", image)
	pod, _, err := b.create(t, testbed.PodSpec{Image: image, Command: []string{"sh"}})
	testbed.Checkf(t, err, "create")
	if left, _ := os.ReadDir(outside); len(left) != 1 {
		t.Errorf("the directory of the host has %v, want only kept", left)
	}
	pod.Remove(t)
	b.noRestores(t)
}

// TestKilledWhileRestoring kills the daemon while a container is created or started from a
// checkpoint. A completely created container can be started, and nothing else is left.
func TestKilledWhileRestoring(t *testing.T) {
	criu := testbed.FittingCRIU(t)
	b := restoring(t, criu, testbed.Options{Tags: []string{"berth_failpoints"}})
	first := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counting}})
	goesOn(t, first.Container)
	image := b.imageOf(t, first.Container, "warm")
	at := counted(t, first.Container)
	first.Remove(t)
	atRest := b.Rest(t)
	path := filepath.Dir(criuLink(t, criu)) + ":" + os.Getenv("PATH")
	for place, survives := range map[string]string{
		failpoint.ContainerPlanned:   "",
		failpoint.ContainerRestoring: "",
		failpoint.ContainerMounted:   "",
		failpoint.ContainerCreated:   "CONTAINER_CREATED",
		failpoint.ContainerRunning:   "CONTAINER_RUNNING",
	} {
		t.Run(place, func(t *testing.T) {
			b.Stop(t)
			b.SetEnvironment("BERTH_FAILPOINT="+place, "PATH="+path)
			b.Start(t)
			pod, id, err := b.create(t, testbed.PodSpec{Image: image})
			if place == failpoint.ContainerRunning {
				testbed.Must(t, err)
				_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: id})
			}
			testbed.Refused(t, err, codes.Unavailable)
			b.Wait(t, time.Minute)
			b.SetEnvironment("PATH=" + path)
			b.Start(t)
			if survives == "" {
				testbed.Same(t, b.listed(t), "SANDBOX_READY", "the states are")
				b.noRestores(t)
			} else {
				left := b.only(t)
				if left.GetState().String() != survives {
					t.Errorf("the container is %s, want %s", left.GetState(), survives)
				}
				c := b.Client.Container(left.GetId(), filepath.Join(pod.Config.GetLogDirectory(), "main", "0.log"))
				if place == failpoint.ContainerCreated {
					c.Start(t)
				}
				b.noRestores(t)
				goesOn(t, c)
				if n := counted(t, c); n < at/2 {
					t.Errorf("the restored container has counted to %d, but to %d before the checkpoint", n, at)
				}
			}
			pod.Remove(t)
			b.NothingLeft(t, atRest)
		})
	}
}

// criuLink returns a link that is called criu to a program.
func criuLink(t *testing.T, program string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), "criu")
	testbed.Must(t, os.Symlink(program, link))
	return link
}

// TestFailedRestore: if CRIU cannot read its files, the error has CRIU's message, the container is
// EXITED, and the files are removed.
func TestFailedRestore(t *testing.T) {
	criu := testbed.Part(t, testbed.CRIU)
	config := shimConfig(t, testbed.Part(t, testbed.RuncShim)) + "[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n"
	b := restoring(t, criu, testbed.Options{Config: config})
	ref := b.Client.Pull(t, "", b.Image)
	image := b.pushCheckpoint(t, "warm", part{"config.dump", configDump(ref)},
		part{"spec.dump", `{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/x"}]}}`},
		part{"checkpoint/descriptors.json", `["/dev/null","/x","/y"]`}, part{"checkpoint/inventory.img", "no image"}, part{"checkpoint/pstree.img", ""})
	for _, handler := range []string{"runc", "shim"} {
		b.Client.Pull(t, handler, image)
		atRest := b.Rest(t)
		pod, id, err := b.create(t, testbed.PodSpec{Handler: handler, Image: image})
		testbed.Mustf(t, err, "%s: create", handler)
		_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: id})
		if err == nil || !strings.Contains(err.Error(), "CRIU says: ") {
			t.Errorf("%s: the start returned %v, want CRIU's message", handler, err)
		}
		if st := b.Client.Container(id, "").Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetReason() != "StartError" || !strings.Contains(st.GetMessage(), "CRIU says: ") {
			t.Errorf("%s: the container is %s, %s: %s", handler, st.GetState(), st.GetReason(), st.GetMessage())
		}
		testbed.Eventually(t, time.Minute, func() error {
			if left, _ := filepath.Glob(filepath.Join(b.Root, "restores", "*")); len(left) > 0 {
				return fmt.Errorf("files of restores are left: %v", left)
			}
			return nil
		})
		pod.Remove(t)
		b.NothingLeft(t, atRest)
	}
}

// TestRestoreThatIsNotStarted removes a container that was created from a checkpoint but not
// started.
func TestRestoreThatIsNotStarted(t *testing.T) {
	b := restoring(t, "/bin/true", testbed.Options{})
	image := b.pushCheckpoint(t, "warm", part{"config.dump", configDump(b.Client.Pull(t, "", b.Image))},
		part{"spec.dump", `{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/x"}]}}`}, part{"checkpoint/descriptors.json", "[]"})
	b.Client.Pull(t, "", image)
	atRest := b.Rest(t)
	pod, id, err := b.create(t, testbed.PodSpec{Image: image})
	testbed.Must(t, err)
	images := filepath.Join(b.Root, "restores", id)
	if info, err := os.Stat(images); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the restore's files is %v, %v, want mode 0700", info, err)
	}
	b.Restart(t)
	if _, err := os.Stat(images); err != nil {
		t.Errorf("a restart of the daemon removed the files of the restore: %v", err)
	}
	b.Client.Container(id, "").Remove(t)
	b.noRestores(t)
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestImageOfAnArchive: an image whose layer is a checkpoint archive is treated as a checkpoint
// image.
func TestImageOfAnArchive(t *testing.T) {
	b := newBed(t, testbed.Options{})
	plain := filepath.Join(t.TempDir(), "checkpoint-web.tar")
	text := tarOf(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "./config.dump", Linkname: configDump("x@sha256:" + strings.Repeat("0", 64))},
		&tar.Header{Typeflag: tar.TypeReg, Name: "./spec.dump", Linkname: "{}"},
		&tar.Header{Typeflag: tar.TypeReg, Name: "./checkpoint/pages-1.img", Linkname: strings.Repeat("memory", 1<<20)})
	testbed.Must(t, os.WriteFile(plain, []byte(text), 0o600))
	image := b.Registry.Push(t, "faults/carried:1", testbed.CheckpointImage(t, plain))
	b.Client.Pull(t, "", image)
	_, _, err := b.create(t, testbed.PodSpec{Image: image})
	testbed.Refused(t, err, codes.PermissionDenied, "registry.checkpoint_images", image)
	b.remove(t, image)
}
