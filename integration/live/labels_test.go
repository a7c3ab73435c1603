package live

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// labels is the file of a bed's labels. Its directory may be missing.
type labels struct{ path string }

// labelled configures a bed to write its labels into a directory that does not exist yet.
func labelled(t *testing.T, b *bed) labels {
	t.Helper()
	l := labels{filepath.Join(b.Dir, "nfd", "features.d", "berth")}
	b.DropIn(t, "70-labels", fmt.Sprintf("[node_labels]\nfile = %q\nlifetime = \"10s\"\n", l.path))
	b.Restart(t)
	return l
}

func (l labels) read(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EISDIR) {
		t.Error(err)
	}
	return string(text)
}

// wait waits until the file has a label, or does not have it.
func (l labels) wait(t *testing.T, want bool, key, value string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		if text := l.read(t); strings.Contains(text, "\n"+key+"="+value+"\n") != want {
			return fmt.Errorf("%s=%s in the file: want %v:\n%s", key, value, want, text)
		}
		return nil
	})
}

func (l labels) ready(t *testing.T, want bool, handler string) {
	t.Helper()
	l.wait(t, want, nodelabel.Handler(handler), nodelabel.Ready)
}

// present waits until the file berth-present has a handler, or does not have it.
func (l labels) present(t *testing.T, want bool, handler string) {
	t.Helper()
	labels{l.path + "-present"}.wait(t, want, nodelabel.Present(handler), nodelabel.True)
}

var wholeFile = regexp.MustCompile(`^(# .*\n)+(# \+expiry-time=\S+Z\n)((# \+no-label\n)?feature\.node\.kubernetes\.io/handler\.[a-z0-9.-]+=[a-z0-9-]+\n)+$`)

// watch reads the file every millisecond until the test ends, and fails if it is ever incomplete:
// Node Feature Discovery may read it at any time.
func (l labels) watch(t *testing.T) {
	var reading sync.WaitGroup
	end := make(chan struct{})
	reading.Go(func() {
		for reads := 0; ; reads++ {
			select {
			case <-end:
				t.Logf("the file was read %d times", reads)
				return
			case <-time.After(time.Millisecond):
			}
			if text := l.read(t); text != "" && !wholeFile.MatchString(text) {
				t.Errorf("the file was incomplete:\n%s", text)
				return
			}
		}
	})
	t.Cleanup(func() { close(end); reading.Wait() })
}

func (b *bed) run(t *testing.T, arguments ...string) {
	t.Helper()
	if out, code := b.try(t, arguments...); code != 0 {
		t.Fatalf("berth %v exits with %d: %s", arguments, code, out)
	}
}

// While the daemon runs, the file for Node Feature Discovery lists as ready exactly the handlers
// that accept pods. A daemon that is stopped or killed leaves the file.
func TestLabels(t *testing.T) {
	b := newBed(t)
	l := labelled(t, b)
	b.waitState(t, "runc", "ready")
	if _, err := os.Stat(filepath.Dir(filepath.Dir(l.path))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("berth created the directory: %v", err)
	}
	if got := b.metric(t, "berth_node_labels_current"); got != "" {
		t.Errorf("without a directory berth_node_labels_current is %s, want none", got)
	}
	testbed.Must(t, os.MkdirAll(filepath.Dir(l.path), 0o755))
	l.watch(t)
	l.ready(t, true, "runc")
	l.wait(t, true, nodelabel.About("runc", "isolation"), "shared-kernel")
	l.wait(t, true, nodelabel.About("runc", "recursive-read-only-mounts"), "true")
	if got := b.metric(t, "berth_node_labels_current"); got != "1" {
		t.Errorf("berth_node_labels_current is %q, want 1", got)
	}

	runtime := filepath.Join(t.TempDir(), "crun")
	program, err := os.ReadFile(testbed.Part(t, testbed.Crun))
	testbed.Must(t, err)
	testbed.Must(t, os.WriteFile(runtime, program, 0o755))
	b.DropIn(t, "crun", table("crun", runtime))
	l.ready(t, true, "crun")
	t.Run("cordoned", func(t *testing.T) {
		b.run(t, "handler", "cordon", "crun")
		l.ready(t, false, "crun")
		l.wait(t, false, nodelabel.About("crun", "isolation"), "shared-kernel")
		l.wait(t, true, nodelabel.About("crun", "state"), "cordoned")
		l.ready(t, true, "runc")
		for range 5 {
			b.run(t, "handler", "uncordon", "crun")
			b.run(t, "handler", "cordon", "crun")
		}
		b.run(t, "handler", "uncordon", "crun")
		l.ready(t, true, "crun")
		l.wait(t, true, nodelabel.About("crun", "state"), "ready")
	})
	t.Run("not ready", func(t *testing.T) {
		testbed.Must(t, os.Rename(runtime, runtime+".away"))
		b.waitState(t, "crun", "not-ready")
		begin := time.Now()
		l.ready(t, false, "crun")
		t.Logf("the label was removed %v after the handler became not ready", time.Since(begin).Round(time.Millisecond))
		l.wait(t, true, nodelabel.About("crun", "state"), "not-ready")
		l.present(t, true, "crun")
		testbed.Must(t, os.Rename(runtime+".away", runtime))
		l.ready(t, true, "crun")
	})
	t.Run("killed", func(t *testing.T) {
		b.Kill9(t)
		left := l.read(t)
		l.ready(t, true, "crun")
		b.remove(t, b.DropInPath("crun")) // while no berth runs
		if l.read(t) != left {
			t.Error("the file changed while no berth ran")
		}
		b.Start(t)
		l.ready(t, false, "crun")
		l.wait(t, false, nodelabel.About("crun", "state"), "ready")
		l.ready(t, true, "runc")
	})
	t.Run("removed", func(t *testing.T) {
		b.DropIn(t, "crun", table("crun", runtime)+"max_pods = 7\n")
		l.ready(t, true, "crun")
		l.wait(t, true, nodelabel.MaxPods("crun"), "7")
		l.present(t, true, "crun")
		b.remove(t, b.DropInPath("crun"))
		l.ready(t, false, "crun")
		l.present(t, false, "crun")
		l.wait(t, false, nodelabel.About("crun", "state"), "ready")
	})
	t.Run("in use", func(t *testing.T) {
		b.DropIn(t, "crun", table("crun", runtime))
		b.waitState(t, "crun", "ready")
		pod := b.pod(t, "crun")
		b.remove(t, b.DropInPath("crun"))
		l.ready(t, false, "crun")
		l.wait(t, true, nodelabel.About("crun", "state"), "draining")
		l.present(t, true, "crun")
		works(t, b, pod)
	})
	t.Run("cannot be written", func(t *testing.T) {
		testbed.Eventually(t, patience, func() error {
			return errors.Join(os.Remove(l.path), os.Mkdir(l.path, 0o755)) // again if berth wrote the file in between
		})
		testbed.Eventually(t, patience, func() error {
			if out, code := b.try(t, "status"); code != 3 || !strings.Contains(out, "cannot write the labels of this node's handlers") {
				return fmt.Errorf("berth status exits with %d, want 3: %s", code, out)
			}
			return nil
		})
		if got := b.metric(t, "berth_node_labels_current"); got != "0" {
			t.Errorf("berth_node_labels_current is %q, want 0", got)
		}
		b.remove(t, l.path)
		l.ready(t, true, "runc")
		testbed.Eventually(t, patience, func() error {
			if out, code := b.try(t, "status"); code != 0 {
				return fmt.Errorf("berth status exits with %d, want 0: %s", code, out)
			}
			return nil
		})
	})
	t.Run("stopped", func(t *testing.T) {
		expiry := regexp.MustCompile(`expiry-time=\S+`)
		first := expiry.FindString(l.read(t))
		testbed.Eventually(t, patience, func() error {
			if expiry.FindString(l.read(t)) == first {
				return errors.New("the file was not renewed: it still has " + first)
			}
			return nil
		})
		b.Stop(t)
		l.ready(t, true, "runc")
		b.Start(t)
		l.ready(t, true, "runc")
	})
}

// A restart of the daemon changes no label, even of a handler whose self-check pod takes longer
// than the start waits.
func TestLabelsOfSlowHandlers(t *testing.T) {
	b := newBed(t)
	l := labelled(t, b)
	testbed.Must(t, os.MkdirAll(filepath.Dir(l.path), 0o755))
	b.DropIn(t, "70-labels", fmt.Sprintf("[node_labels]\nfile = %q\nlifetime = \"1h\"\n", l.path)) // so that nothing expires in this test
	b.Restart(t)
	held := filepath.Join(t.TempDir(), "held")
	runtime := filepath.Join(t.TempDir(), "slow")
	script := fmt.Sprintf("#!/bin/sh\nfor a; do [ \"$a\" = run ] && while [ -e %s ]; do sleep 0.1; done; done\nexec %s \"$@\"\n", held, testbed.Part(t, testbed.Runc))
	testbed.Must(t, os.WriteFile(runtime, []byte(script), 0o755))
	b.DropIn(t, "slow", table("slow", runtime)+"self_check_pod = true\nmax_pods = 7\n")
	l.ready(t, true, "slow")
	testbed.Must(t, os.WriteFile(held, nil, 0o600))
	b.Restart(t)
	b.waitState(t, "slow", "not-ready")
	b.run(t, "handler", "cordon", "runc")
	l.ready(t, false, "runc") // shows that the file was written
	l.ready(t, true, "slow")
	l.wait(t, true, nodelabel.MaxPods("slow"), "7")
	b.remove(t, held)
	b.waitState(t, "slow", "ready")
	l.ready(t, true, "slow")
	// Once the self-check has finished, the labels follow the handler's state again.
	b.remove(t, runtime)
	l.ready(t, false, "slow")
}
