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
		t.Errorf("an empty directory is served: %v, %v", yes, err)
	}
	first := test.Value(Lock(dir))(t)
	if pid, yes, err := Served(dir); pid != me || !yes || err != nil {
		t.Errorf("it is served by %q: %v, %v", pid, yes, err)
	}
	test.Refused(t, test.Err(Lock(dir)), errdefs.IsAlreadyExists, me, dir)
	test.Must(t, first.Close())
	if _, yes, err := Served(dir); yes || err != nil {
		t.Errorf("after its end it is served: %v, %v", yes, err)
	}
	second := test.Value(Lock(dir))(t)
	defer second.Close()
	if _, err := Lock(dir + "/none"); !os.IsNotExist(err) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
