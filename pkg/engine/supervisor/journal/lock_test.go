package journal

import (
	"os"
	"strconv"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestADirectoryHasOneSupervisor(t *testing.T) {
	dir, me := t.TempDir(), strconv.Itoa(os.Getpid())
	if _, yes, err := Served(dir); yes || err != nil {
		t.Errorf("Served of an empty directory: %v, %v; want false", yes, err)
	}
	first := test.Value(Lock(dir))(t)
	if pid, yes, err := Served(dir); pid != me || !yes || err != nil {
		t.Errorf("Served of a locked directory: pid %q, %v, %v; want %s, true", pid, yes, err, me)
	}
	test.Refused(t, test.Err(Lock(dir)), errdefs.IsAlreadyExists, me, dir)
	test.Must(t, first.Close())
	if _, yes, err := Served(dir); yes || err != nil {
		t.Errorf("Served after the lock was closed: %v, %v; want false", yes, err)
	}
	second := test.Value(Lock(dir))(t)
	defer second.Close()
	if _, err := Lock(dir + "/none"); !os.IsNotExist(err) {
		t.Errorf("Lock of a missing directory: %v", err)
	}
}
