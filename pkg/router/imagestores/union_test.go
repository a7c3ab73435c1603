package imagestores

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

var (
	idX = "sha256:" + strings.Repeat("a", 64)
	idY = "sha256:" + strings.Repeat("b", 64)
)

func TestImagesByName(t *testing.T) {
	digest := "docker.io/library/app@" + idY
	x := &runtimeapi.Image{Id: idX, RepoTags: []string{"docker.io/library/app:1", "example.test:5000/x:2"}, RepoDigests: []string{digest}}
	y := &runtimeapi.Image{Id: idY}
	for name, want := range map[string]int{
		"": 2, "app:1": 1, "docker.io/library/app:1": 1, "app": 0, "app:2": 0, "x:2": 0, "example.test:5000/x:2": 1,
		"app@" + idY: 1, "app:9@" + idY: 1, idX: 1, bareID(idX): 1, idX[:14]: 1, "aaaaaa": 1, "aaaaa": 0, "c": 0,
	} {
		if got := WithName([]*runtimeapi.Image{x, y}, name); len(got) != want {
			t.Errorf("%q matches %d images, want %d", name, len(got), want)
		}
	}
}

func TestRemovals(t *testing.T) {
	bare := bareID(idX)
	for what, c := range map[string]struct {
		name  string
		found map[string]string
		want  map[string]string
	}{
		"by id":                    {idX, map[string]string{"a": idX, "b": ""}, map[string]string{"a": idX, "b": idX}},
		"by an id in two forms":    {bare, map[string]string{"a": idX, "b": bare}, map[string]string{"a": "", "b": bare}},
		"by a prefix of an id":     {idX[:20], map[string]string{"a": idX, "b": idX}, map[string]string{"a": idX[:20], "b": idX[:20]}},
		"by a name of one store":   {"t:1", map[string]string{"a": idX, "b": ""}, map[string]string{"a": "t:1", "b": "t:1 " + idX}},
		"by a name that has moved": {"t:1", map[string]string{"a": idX, "b": idY}, map[string]string{"a": "t:1 " + idY, "b": "t:1 " + idX}},
		"by a name of no store":    {"t:1", map[string]string{}, map[string]string{"a": "t:1"}},
	} {
		for store, want := range c.want {
			test.Equal(t, fmt.Sprintf("%s: store %s removes", what, store), strings.Join(Removals(c.name, store, c.found), " "), want)
		}
	}
}

// For a caller that may use any store, an image is present only if all stores have the same one.
func TestStatusOfSeveralStores(t *testing.T) {
	has := func(id string) *runtimeapi.ImageStatusResponse {
		return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: id}}
	}
	none, broken := &runtimeapi.ImageStatusResponse{}, &runtimeapi.ImageStatusResponse{}
	broken.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, imageField, protowire.BytesType), []byte{0xff}))
	for what, c := range map[string]struct {
		all         []*runtimeapi.ImageStatusResponse
		want, anyOf string
	}{
		"in all":                   {[]*runtimeapi.ImageStatusResponse{has(idX), has(idX)}, idX, idX},
		"in all, ids in two forms": {[]*runtimeapi.ImageStatusResponse{has(idX), has(bareID(idX))}, idX, idX},
		"only in the first":        {[]*runtimeapi.ImageStatusResponse{has(idX), none}, "", idX},
		"only in another":          {[]*runtimeapi.ImageStatusResponse{none, has(idX)}, "", idX},
		"a tag that moved":         {[]*runtimeapi.ImageStatusResponse{has(idX), has(idY)}, "", idX},
		"cannot be decoded":        {[]*runtimeapi.ImageStatusResponse{has(idX), broken}, "", idX},
		"in none":                  {[]*runtimeapi.ImageStatusResponse{none, none}, "", ""},
	} {
		test.Equal(t, what, Status(c.all, false).GetImage().GetId(), c.want)
		test.Equal(t, fmt.Sprintf("%s, verbose", what), Status(c.all, true).GetImage().GetId(), c.anyOf)
	}
}
