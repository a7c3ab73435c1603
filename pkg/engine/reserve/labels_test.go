package reserve

import (
	"errors"
	"testing"

	"github.com/opencontainers/selinux/go-selinux"
)

// taken reports whether the library has reserved the categories of a label. The library
// keeps its list even if the kernel has no SELinux.
func taken(t *testing.T, label string) bool {
	t.Helper()
	err := selinux.ReserveLabelV2(label)
	if err == nil {
		selinux.ReleaseLabel(label)
		return false
	}
	if !errors.Is(err, selinux.ErrMCSAlreadyExists) {
		t.Fatal(err)
	}
	return true
}

func TestLabelsAreFreeWhenTheLastUserHasGone(t *testing.T) {
	const sandbox = "system_u:system_r:container_t:s0:c101,c102"
	const container = "system_u:system_r:other_t:s0:c101,c102"
	l := NewLabels()
	l.Hold(sandbox)
	l.Hold(container)
	l.Release(container)
	if !taken(t, sandbox) {
		t.Error("the release of a container's label freed the categories of its sandbox")
	}
	l.Release(sandbox)
	if taken(t, sandbox) {
		t.Error("the categories stay reserved")
	}
	l.Hold(sandbox)
	if !taken(t, sandbox) {
		t.Error("the categories cannot be reserved again")
	}
	l.Release(sandbox)
}

func TestLabelsWithoutCategoriesAreNobodys(t *testing.T) {
	l := NewLabels()
	for _, label := range []string{"", "u:r:t:s0", "nonsense"} {
		l.Hold(label)
		l.Release(label)
		l.Release(label)
	}
	if len(l.users) != 0 {
		t.Errorf("there are users of %v", l.users)
	}
}
