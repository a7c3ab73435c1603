package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

// longID returns a full id that begins with prefix.
func longID(prefix string) string { return prefix + strings.Repeat("0", fullID-len(prefix)) }

func put(x *index, owners ...*Owner) {
	for _, o := range owners {
		x.put(o)
	}
}

func TestResolve(t *testing.T) {
	x := &index{}
	put(x, &Owner{ID: longID("abc1")}, &Owner{ID: longID("abc2")}, &Owner{ID: longID("f0")}, &Owner{ID: "abc"}, &Owner{ID: longID("e1") + "77"})
	for name, tc := range map[string]struct{ id, want, mistake string }{
		"full id":                       {id: longID("abc1"), want: longID("abc1")},
		"unique prefix":                 {id: "abc1", want: longID("abc1")},
		"one letter":                    {id: "f", want: longID("f0")},
		"id that is also a prefix":      {id: "abc", want: "abc"},
		"ambiguous":                     {id: "ab", mistake: longID("abc1") + ", " + longID("abc2")},
		"unknown":                       {id: "77"},
		"unknown beside known ones":     {id: "abd"},
		"full id that is also a prefix": {id: longID("e1")},
		"empty id":                      {id: ""},
		"not hexadecimal":               {id: "/etc"},
		"bytes beyond ASCII":            {id: "\xff\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			owner, err := x.resolve(tc.id)
			if tc.mistake != "" {
				if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.mistake) {
					t.Fatalf("got error %v, want an InvalidArgument with %q", err, tc.mistake)
				}
				return
			}
			test.Must(t, err)
			got := ""
			if owner != nil {
				got = owner.ID
			}
			test.Equal(t, "owner", got, tc.want)
		})
	}
}

func TestAmbiguousListsFewCandidates(t *testing.T) {
	x := &index{}
	for i := range 100 {
		x.put(&Owner{ID: longID(fmt.Sprintf("aa%02d", i))})
	}
	_, err := x.resolve("aa")
	if err == nil || len(err.Error()) > 1024 || !strings.Contains(err.Error(), "and 92 more") {
		t.Errorf("got %v", err)
	}
}

func TestDrop(t *testing.T) {
	x := &index{}
	put(x, &Owner{ID: longID("a")}, &Owner{ID: longID("b")})
	x.drop(longID("a"))
	x.drop(longID("c"))
	if x.get(longID("a")) != nil || x.get(longID("b")) == nil {
		t.Error("dropped the wrong owner")
	}
	if owner, err := x.resolve("a"); owner != nil || err != nil {
		t.Errorf("a dropped owner is still found: %v, %v", owner, err)
	}
}

func TestPutKeepsTheFirstOwner(t *testing.T) {
	x := &index{}
	x.put(&Owner{ID: "aa", Handler: "first"})
	x.put(&Owner{ID: "aa", Handler: "second"})
	test.Equal(t, "handler of the owner", x.get("aa").Handler, "first")
}
