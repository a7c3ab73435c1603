package router

import (
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

var (
	idX = "sha256:" + strings.Repeat("a", fullID)
	idY = "sha256:" + strings.Repeat("b", fullID)
)

func TestImagesByName(t *testing.T) {
	digest := "docker.io/library/app@" + idY
	x := &runtimeapi.Image{Id: idX, RepoTags: []string{"docker.io/library/app:1", "example.test:5000/x:2"}, RepoDigests: []string{digest}}
	y := &runtimeapi.Image{Id: idY}
	for name, want := range map[string]int{
		"": 2, "app:1": 1, "docker.io/library/app:1": 1, "app": 0, "app:2": 0, "x:2": 0, "example.test:5000/x:2": 1,
		"app@" + idY: 1, "app:9@" + idY: 1, idX: 1, bareID(idX): 1, idX[:14]: 1, "aaaaaa": 1, "aaaaa": 0, "c": 0,
	} {
		if got := withName([]*runtimeapi.Image{x, y}, name); len(got) != want {
			t.Errorf("%q stands for %d, want %d", name, len(got), want)
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
		"by an id, written twice":  {bare, map[string]string{"a": idX, "b": bare}, map[string]string{"a": "", "b": bare}},
		"by the beginning of one":  {idX[:20], map[string]string{"a": idX, "b": idX}, map[string]string{"a": idX[:20], "b": idX[:20]}},
		"by a name of one store":   {"t:1", map[string]string{"a": idX, "b": ""}, map[string]string{"a": "t:1", "b": "t:1 " + idX}},
		"by a name that has moved": {"t:1", map[string]string{"a": idX, "b": idY}, map[string]string{"a": "t:1 " + idY, "b": "t:1 " + idX}},
		"by no name":               {"t:1", map[string]string{}, map[string]string{"a": "t:1"}},
	} {
		for store, want := range c.want {
			if got := strings.Join(removals(c.name, store, c.found), " "); got != want {
				t.Errorf("%s: store %s removes %q, want %q", what, store, got, want)
			}
		}
	}
}

func TestNamesOfImagesOfOtherStores(t *testing.T) {
	for what, c := range map[string]struct {
		spec  *runtimeapi.ImageSpec
		image *runtimeapi.Image
		want  string
	}{
		"by the digest of the user's repository": {
			&runtimeapi.ImageSpec{Image: idX, UserSpecifiedImage: "app:1"},
			&runtimeapi.Image{RepoTags: []string{"docker.io/library/app:1"}, RepoDigests: []string{"a.test/app@" + idY, "docker.io/library/app@" + idX}},
			"docker.io/library/app@" + idX,
		},
		"by the name that was asked for": {
			&runtimeapi.ImageSpec{Image: "app:1"}, &runtimeapi.Image{RepoTags: []string{"a.test/other:1"}}, "app:1",
		},
		"by any": {&runtimeapi.ImageSpec{Image: idX}, &runtimeapi.Image{RepoTags: []string{"app:1"}}, "app:1"},
		"not":    {&runtimeapi.ImageSpec{Image: idX}, &runtimeapi.Image{Id: idX}, ""},
	} {
		if got := exact(c.spec, c.image); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

func TestImagesThatContainersCouldNotBeGiven(t *testing.T) {
	o, p := newOwners(), &pulls{}
	a, b := routertest.New("a"), routertest.New("b")
	for _, id := range []string{"1", "2"} {
		recorded(t, o.addSandbox(id, "runc", handler.Attempt{}, b))
	}
	names := []string{idX, "app:1", ""}
	missed := func(want ...string) {
		t.Helper()
		var got []string
		for _, name := range []string{idX, "docker.io/library/app:1", idY, "other:1"} {
			if p.missed(o, name) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("missing: %q, want %q", got, want)
		}
	}
	missed()
	p.lacks("1", b, names)
	missed(idX, "docker.io/library/app:1")
	p.came(a, "app:1")
	missed(idX, "docker.io/library/app:1") // that is not where it lacks
	p.came(b, "docker.io/library/app:1")
	missed()
	p.lacks("1", b, names)
	p.removed("1")
	missed()
	p.lacks("2", b, names)
	o.dropSandbox("2") // by somebody else
	missed()
	p.lacks("1", b, []string{"other:1"})
	for name, m := range p.misses {
		m.until = time.Now().Add(-time.Second)
		p.misses[name] = m
	}
	missed()
	if len(p.misses) != 0 {
		t.Errorf("kept: %v", p.misses)
	}
}
