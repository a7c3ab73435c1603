package supervisor

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestADirectoryHasOneSupervisor(t *testing.T) {
	dir, me := t.TempDir(), strconv.Itoa(os.Getpid())
	if _, yes, err := Served(dir); yes || err != nil {
		t.Errorf("an empty directory is served: %v, %v", yes, err)
	}
	first := value(lock(dir))(t)
	if pid, yes, err := Served(dir); pid != me || !yes || err != nil {
		t.Errorf("it is served by %q: %v, %v", pid, yes, err)
	}
	if _, err := lock(dir); !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), me) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second lock: %v", err)
	}
	must(t, first.Close())
	if _, yes, err := Served(dir); yes || err != nil {
		t.Errorf("after its end it is served: %v, %v", yes, err)
	}
	second := value(lock(dir))(t)
	defer second.Close()
	if _, err := lock(dir + "/none"); !os.IsNotExist(err) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
