package remote

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// shop is a berth with three image stores: its own, that of a containerd and that of another
// berth.
type shop struct {
	*bed
	inner *testbed.Berth
	// made counts the images that were pushed.
	made int
}

// push pushes a new image, which differs from all others, under a name.
func (s *shop) push(t *testing.T, name string) string {
	t.Helper()
	s.made++
	return s.Registry.Push(t, name, numbered(t, s.made))
}

// numbered returns an image that differs for each number.
func numbered(t *testing.T, n int) v1.Image {
	return testbed.Busybox(t, testbed.WithConfig(func(c *v1.Config) { c.Labels = map[string]string{"number": strconv.Itoa(n)} }))
}

// in returns the handlers whose stores have an image, in the order runc, legacy, inner.
func (s *shop) in(t *testing.T, name string) string {
	t.Helper()
	var all []string
	for _, store := range []struct {
		handler, ask string
		client       *testbed.Client
	}{{"runc", "runc", s.Client}, {"legacy", "", s.other.Client}, {"inner", "", s.inner.Client}} {
		if idOf(t, store.client, store.ask, name) != "" {
			all = append(all, store.handler)
		}
	}
	return strings.Join(all, " ")
}

func (s *shop) isIn(t *testing.T, name, want string) {
	t.Helper()
	testbed.Same(t, s.in(t, name), want, "the stores with %s are", name)
}

func (s *shop) pod(t *testing.T, handler string) *testbed.Pod {
	t.Helper()
	return s.Client.RunSandbox(t, testbed.PodSpec{Handler: handler})
}

func TestImagesOfSeveralStores(t *testing.T) {
	t.Parallel()
	s := &shop{bed: newBed(t)}
	s.inner = s.behind(t)
	for _, handler := range []string{"runc", "legacy", "inner"} {
		s.pod(t, handler) // a store without pods is ignored
	}
	for _, check := range []struct {
		name string
		run  func(*testing.T, *shop)
	}{
		{"pulls for a handler, for a pod, and for neither", pullsGo},
		{"a tag that differs between stores", movedTag},
		{"volumes", volumes},
		{"an image in use in another daemon", usedElsewhere},
		{"file systems and pinned images", fileSystems},
	} {
		t.Run(check.name, func(t *testing.T) { check.run(t, s) })
	}
}

func pullsGo(t *testing.T, s *shop) {
	name := s.push(t, "pulls:1")
	s.Client.Pull(t, "legacy", name)
	s.isIn(t, name, "legacy")
	if idOf(t, s.Client, "legacy", name) == "" || idOf(t, s.Client, "runc", name) != "" {
		t.Error("the images of a handler are not those of its store")
	}
	if got := idOf(t, s.Client, "", name); got != "" {
		t.Errorf("an image that two stores lack is reported as %s, want none", got)
	}
	if _, err := pull(t, s.Client, s.pod(t, "inner"), name); err != nil {
		t.Error(err)
	}
	s.isIn(t, name, "legacy inner")
	id := s.Client.Pull(t, "", name)
	s.isIn(t, name, "runc legacy inner")
	if got := idOf(t, s.Client, "", name); got != id {
		t.Errorf("an image that all stores have is reported as %q, want %s", got, id)
	}
	testbed.Check(t, remove(t, s.Client, id))
	s.isIn(t, name, "")
}

func movedTag(t *testing.T, s *shop) {
	name := s.push(t, "moved:1")
	before := s.Client.Pull(t, "runc", name)
	s.push(t, "moved:1")
	after := s.Client.Pull(t, "legacy", name)
	pod := s.pod(t, "legacy")
	if told := idOf(t, s.Client, "", name); told != "" {
		t.Fatalf("an image of one store is reported as %s, want none", told)
	}
	if got, err := pull(t, s.Client, pod, name); err != nil || got != after {
		t.Fatalf("the pull for the pod returns %s, %v, want %s", got, err, after)
	}
	id, err := create(t, s.Client, pod, "main", after, name)
	testbed.Must(t, err)
	c, err := s.Client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil || c.GetStatus().GetImageId() != after {
		t.Errorf("the container has %v, %v, want the image %s that was pulled", c, err, after)
	}
	if got := idOf(t, s.other.Client, "", name); got != after {
		t.Errorf("the tag is image %s in the other daemon, want %s as pulled", got, after)
	}
	listed := images(t, s.Client)
	if listed[before] == nil || listed[after] == nil {
		t.Error("the list lacks one of the two images")
	}
	testbed.Check(t, remove(t, s.Client, name))
	s.isIn(t, before, "")
	s.isIn(t, after, "")
}

func volumes(t *testing.T, s *shop) {
	name := s.Registry.Push(t, "volume:1", testbed.Image(t, testbed.WithLayer(testbed.File{Path: "what", Mode: 0o644, Body: []byte("a volume\n")})))
	id := s.Client.Pull(t, "runc", name)
	for _, handler := range []string{"legacy", "inner"} {
		pod := s.pod(t, handler)
		main := s.Client.Pull(t, handler, s.Image)
		if got, err := pull(t, s.Client, pod, name); err != nil || got != id {
			t.Errorf("the pull of the volume for %s returns %s, %v", handler, got, err)
		}
		c, err := create(t, s.Client, pod, "main", main, s.Image, func(c *runtimeapi.ContainerConfig) {
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: name}})
		})
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := s.Client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c}); err != nil {
			t.Error(err)
		}
		r, err := s.Client.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c, Cmd: []string{"cat", "/volume/what"}, Timeout: 60})
		if err != nil || string(r.GetStdout()) != "a volume\n" {
			t.Errorf("a container of %s reads %v, %v from the volume", handler, r, err)
		}
	}
}

func usedElsewhere(t *testing.T, s *shop) {
	name := s.push(t, "used:1")
	pod := s.Client.RunPod(t, testbed.PodSpec{Handler: "legacy", Image: name, Command: []string{"sleep", "3600"}})
	id := s.Client.Pull(t, "runc", name)
	testbed.Check(t, remove(t, s.Client, id))
	s.isIn(t, id, "")
	if got := pod.Container.Exec(t, "echo", "on"); got != "on\n" {
		t.Errorf("exec in a container whose image is removed prints %q", got)
	}
}

// mounts returns the mount points of the image stores: the first one as listed, the others sorted.
func (s *shop) mounts(t *testing.T) (all []string) {
	t.Helper()
	fs, err := s.Client.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	testbed.Must(t, err)
	for _, f := range fs.GetImageFilesystems() {
		var of syscall.Statfs_t
		if err := syscall.Statfs(f.GetFsId().GetMountpoint(), &of); err != nil || f.GetUsedBytes() == nil || f.GetTimestamp() <= 0 {
			t.Errorf("the file system %v is incomplete, or does not exist: %v", f, err)
		}
		all = append(all, f.GetFsId().GetMountpoint())
	}
	slices.Sort(all[min(1, len(all)):])
	return all
}

func fileSystems(t *testing.T, s *shop) {
	mounts := s.mounts(t)
	if len(mounts) != 3 || !strings.HasPrefix(mounts[0], s.Root) {
		t.Errorf("the stores are at %q, want 3, berth's first", mounts)
	}
	pinned := 0
	for _, image := range images(t, s.Client) {
		if image.GetPinned() {
			pinned++
		}
	}
	if pinned != 1 {
		t.Errorf("%d images are pinned, want only one of containerd", pinned)
	}
}
