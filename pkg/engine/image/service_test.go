package image

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestImageUser(t *testing.T) {
	const none = -1
	for user, want := range map[string]struct {
		uid  int64
		name string
	}{
		"":          {none, ""},
		"0":         {0, ""},
		"1002":      {1002, ""},
		"1002:7":    {1002, ""},
		"1002:team": {1002, ""},
		"app":       {none, "app"},
		"app:7":     {none, "app"},
		"app:team":  {none, "app"},
	} {
		uid, name := imageUser(user)
		if name != want.name || (uid != nil) != (want.uid != none) || uid.GetValue() != max(want.uid, 0) {
			t.Errorf("%q: uid %v, name %q, want %+v", user, uid, name, want)
		}
	}
}

// All answers of the service have the same ID for an image, and report the image as pinned. A
// pinned image can be removed.
func TestServiceAnswersWithOneID(t *testing.T) {
	reg := newTestRegistry(t)
	built := build(t, v1.Config{User: "7:8"}, layer(t, file{name: "f"}))
	reg.push(t, "app:1", built)
	s := openStore(t, Config{HostsDir: reg.hosts(t), PinnedImages: []string{domain + "/app:*"}})
	service := NewService(s)
	spec := &runtimeapi.ImageSpec{Image: app}
	pulled := test.Value(service.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: spec}))(t)
	list := test.Value(service.ListImages(t.Context(), &runtimeapi.ListImagesRequest{}))(t)
	byName := test.Value(service.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec}))(t)
	byID := test.Value(service.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: pulled.GetImageRef()}}))(t)
	if len(list.GetImages()) != 1 {
		t.Fatalf("list: %v", list)
	}
	for where, img := range map[string]*runtimeapi.Image{"list": list.GetImages()[0], "status by name": byName.GetImage(), "status by id": byID.GetImage()} {
		if img.GetId() != idOf(t, built) || img.GetId() != pulled.GetImageRef() {
			t.Errorf("%s: id %q, PullImage returned %q", where, img.GetId(), pulled.GetImageRef())
		}
		if !img.GetPinned() || img.GetUid().GetValue() != 7 || img.GetUsername() != "" || img.GetSize() == 0 {
			t.Errorf("%s: the image is %v, want it pinned and with user 7", where, img)
		}
	}
	test.Must(t, test.Err(service.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: pulled.GetImageRef()}})))
	gone, err := service.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil || gone.GetImage() != nil {
		t.Errorf("after RemoveImage of a pinned image: %v, %v", gone, err)
	}
}

// An invalid image name is refused with a short error.
func TestPullOfWhatNoRegistryHas(t *testing.T) {
	service := NewService(openStore(t, Config{}))
	for ref, says := range map[string]string{
		"":                       "name the image",
		strings.Repeat("x", 300): "reference",
		domain + "/app:" + strings.Repeat("1", 2000): "use at most 1024",
		"Not A Name": "registry/name:tag",
	} {
		_, err := service.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) || len(err.Error()) > 500 {
			t.Errorf("the pull of %.40q returned %v", ref, err)
		}
	}
}
