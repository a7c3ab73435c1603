package handler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestValidName(t *testing.T) {
	for name, valid := range map[string]bool{
		"runc": true, "kata-qemu": true, "a": true, "9p": true, strings.Repeat("x", 63): true,
		"": false, "kata_qemu": false, "runc.v2": false, "Kata": false, "-a": false, "a-": false,
		"a b": false, "a/b": false, "ä": false, "a\x00": false, strings.Repeat("x", 64): false,
	} {
		err := ValidName(name)
		if (err == nil) != valid {
			t.Errorf("ValidName(%q) = %v", name, err)
		}
		if err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("ValidName(%q) is of the wrong class: %v", name, err)
		}
	}
}

func TestValidNameBoundsItsText(t *testing.T) {
	err := ValidName(strings.Repeat("\x00", 1<<20))
	if err == nil || len(err.Error()) > 1024 {
		t.Fatalf("got %d bytes", len(err.Error()))
	}
}

func TestNearest(t *testing.T) {
	known := []string{"crun", "gvisor", "kata", "kata-qemu", "runc", "youki"}
	for _, c := range []struct{ name, want string }{
		{"katta", "kata"},
		{"kaat", "kata"},           // neighbours swapped
		{"kata_qemu", "kata-qemu"}, // separator
		{"Kata-QEMU", "kata-qemu"}, // case
		{"gviser", "gvisor"},
		{"gvizr", ""},   // two edits in five letters
		{"run", "crun"}, // the first of two with the same distance
		{"docker", ""},  // nothing is similar
		{"", ""},        // empty
		{"----", ""},    // only separators
		{strings.Repeat("kata", 1<<18), ""},
	} {
		got, ok := Nearest(c.name, known)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("Nearest(%.20q) = %q, %v; want %q", c.name, got, ok, c.want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0},
		{"abc", "acb", 1}, {"abc", "abd", 1}, {"abc", "ab", 1}, {"abc", "xabc", 1},
		{"kitten", "sitting", 3}, {"ca", "abc", 3},
	} {
		test.Equal(t, fmt.Sprintf("editDistance(%q, %q)", c.a, c.b), editDistance(c.a, c.b), c.want)
		test.Equal(t, fmt.Sprintf("editDistance(%q, %q)", c.b, c.a), editDistance(c.b, c.a), c.want)
	}
}
