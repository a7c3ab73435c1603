package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

// collect disconnects all pods except the valid ones, as a start of the daemon does.
func collect(t *testing.T, p *Plugins, valid ...Pod) error {
	t.Helper()
	return p.Leftovers(valid...).Collect(t.Context())
}

// unfinished leaves a pod for which both ADD and DEL fail, and returns the path of its journal entry.
func unfinished(t *testing.T, n *node) (entry string) {
	t.Helper()
	n.configure("10-spied.conflist", `{"cniVersion": "1.0.0", "name": "spied", "plugins": [{"type": "first"}, {"type": "not-there"}]}`)
	n.spy("first", "")
	n.spy("not-there", "exit 1")
	pod := n.pod("pod-broken")
	if _, err := New(n.config).Setup(t.Context(), pod); err == nil {
		t.Fatal("Setup succeeded although a plugin fails")
	}
	entry = filepath.Join(n.config.CacheDir, "journal", pod.ID+".json")
	if err := collect(t, New(n.config)); err == nil || !strings.Contains(err.Error(), pod.ID) {
		t.Fatalf("a collection with a plugin that fails: %v", err)
	}
	return entry
}

// Pods of a broken configuration are disconnected with the corrected configuration.
func TestCollectByTheMendedConfiguration(t *testing.T) {
	n := newNode(t)
	entry := unfinished(t, n)
	n.configure("10-spied.conflist", `{"cniVersion": "1.0.0", "name": "spied", "plugins": [{"type": "first"}]}`)
	test.Must(t, collect(t, New(n.config)))
	test.ErrorIs(t, test.Err(os.Stat(entry)), os.ErrNotExist, "the journal entry is left")
	n.checkClean()
}

// A pod that could not be disconnected for giveUpAfter is dropped from the journal.
func TestCollectGivesUp(t *testing.T) {
	n := newNode(t)
	path := unfinished(t, n)
	if err := collect(t, New(n.config)); err == nil {
		t.Fatal("the pod was given up at once")
	}
	p := New(n.config)
	entry, err := p.journal.read("pod-broken")
	if err != nil || entry.FailedSince.IsZero() || time.Since(entry.FailedSince) > time.Minute {
		t.Fatalf("the journal entry is %+v, %v", entry, err)
	}
	entry.FailedSince = entry.FailedSince.Add(-giveUpAfter)
	test.Must(t, p.journal.write(entry))
	test.Checkf(t, collect(t, p), "a collection that gives up")
	test.ErrorIs(t, test.Err(os.Stat(path)), os.ErrNotExist, "the journal entry is left")
	n.checkClean()
}

func TestCollectSendsTheVerb(t *testing.T) {
	n := newNode(t)
	n.configure("10-new.conflist", `{"cniVersion": "1.1.0", "name": "new", "plugins": [{"type": "first"}]}`)
	n.spy("first", "")
	p := New(n.config)
	kept := n.pod("pod-kept")
	mustSetup(t, p, kept)
	test.Must(t, collect(t, New(n.config), kept))
	calls := n.called("first")
	last := calls[len(calls)-1]
	want := []any{map[string]any{"containerID": "pod-kept", "ifname": "eth0"}}
	if last.environ["CNI_COMMAND"] != "GC" || !reflect.DeepEqual(last.stdin["cni.dev/valid-attachments"], any(want)) {
		t.Errorf("last call %s with %v", last.environ["CNI_COMMAND"], last.stdin)
	}
	test.Must(t, collect(t, New(n.config)))
	test.Equal(t, "commands", n.commands("first"), "ADD GC DEL GC")
	n.checkClean()

	n.configure("10-new.conflist", `{"cniVersion": "1.1.0", "name": "new", "disableGC": true, "plugins": [{"type": "first"}]}`)
	test.Must(t, collect(t, New(n.config)))
	if got := n.commands("first"); got != "ADD GC DEL GC" {
		t.Errorf("commands %s: disableGC was ignored", got)
	}
}

// Without the option GC the verb GC is not sent, which would disconnect the pods of another daemon.
func TestCollectSendsNoVerbUnasked(t *testing.T) {
	n := newNode(t)
	n.config.GC = false
	n.configure("10-new.conflist", `{"cniVersion": "1.1.0", "name": "new", "plugins": [{"type": "first"}]}`)
	n.spy("first", "")
	mustSetup(t, New(n.config), n.pod("pod-lost"))
	test.Must(t, collect(t, New(n.config)))
	test.Equal(t, "commands", n.commands("first"), "ADD DEL")
	n.checkClean()
}

// held installs the plugin "first", which writes to the file log when a command begins and ends.
// The given command blocks for the given pod until the file release exists.
func held(n *node, command, pod string) (log, release string) {
	dir := n.t.TempDir()
	log, release = filepath.Join(dir, "log"), filepath.Join(dir, "release")
	n.script("first", fmt.Sprintf(`cat > /dev/null
echo begin "$CNI_COMMAND" "$CNI_CONTAINERID" >> %[1]q
if [ "$CNI_COMMAND/$CNI_CONTAINERID" = %[2]q ]; then
	while [ ! -e %[3]q ]; do sleep 0.02; done
fi
echo end "$CNI_COMMAND" "$CNI_CONTAINERID" >> %[1]q
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.98.0.7/24"}]}'`, log, command+"/"+pod, release))
	return log, release
}

// waitFor waits until a line is in the log, and returns the whole log.
func waitFor(t *testing.T, log, line string) (text string) {
	t.Helper()
	test.Retry(t, func() error {
		b, _ := os.ReadFile(log)
		if text = string(b); !strings.Contains(text, line) {
			return fmt.Errorf("no %q in the log:\n%s", line, text)
		}
		return nil
	})
	return text
}

func unblock(t *testing.T, release string) {
	t.Helper()
	test.Must(t, os.WriteFile(release, nil, 0o600))
}

const oneList = `{"cniVersion": %q, "name": "one", "plugins": [{"type": "first"}]}`

// A leftover pod whose DEL hangs does not delay other pods.
func TestCollectHoldsUpNoPod(t *testing.T) {
	n := newNode(t)
	n.configure("10-one.conflist", fmt.Sprintf(oneList, "1.1.0"))
	log, release := held(n, "DEL", "pod-lost")
	before := New(n.config)
	mustSetup(t, before, n.pod("pod-lost"))
	mustSetup(t, before, n.pod("pod-lost-too"))

	p := New(n.config)
	left := p.Leftovers()
	done := make(chan error, 1)
	go func() { done <- left.Collect(t.Context()) }()
	waitFor(t, log, "begin DEL pod-lost\n")
	waitFor(t, log, "end DEL pod-lost-too\n")
	young := n.pod("pod-young")
	r := mustSetup(t, p, young)
	mustTeardown(t, p, young, r)
	if all := waitFor(t, log, "end DEL pod-young"); strings.Contains(all, "end DEL pod-lost\n") || strings.Contains(all, "GC") {
		t.Errorf("the DEL that hangs has ended, or GC did not wait for it:\n%s", all)
	}
	unblock(t, release)
	test.Check(t, <-done)
	waitFor(t, log, "end GC")
	n.checkClean()
}

// The DEL of each leftover pod has its own timeout, and GC runs after all of them.
func TestCollectBoundsEachPod(t *testing.T) {
	n := newNode(t)
	n.configure("10-one.conflist", fmt.Sprintf(oneList, "1.1.0"))
	log, release := held(n, "DEL", "pod-hangs")
	mustSetup(t, New(n.config), n.pod("pod-hangs"))
	p := New(n.config)
	p.undoTimeout = 100 * time.Millisecond
	checkError(t, collect(t, p), errdefs.IsDeadlineExceeded, "pod-hangs", "killed before it finished")
	if all := waitFor(t, log, "end GC"); strings.Count(all, "begin DEL") > 1 { // the DEL may be killed before it writes a line
		t.Errorf("the same DEL was tried more than once:\n%s", all)
	}
	if entry, err := p.journal.read("pod-hangs"); err != nil || entry == nil || entry.FailedSince.IsZero() {
		t.Errorf("the failure is not in the journal: %+v, %v", entry, err)
	}
	unblock(t, release)
	test.Check(t, collect(t, New(n.config)))
	n.checkClean()
}

// CNI allows neither ADD nor DEL during a GC. Pods wait for the GC until their contexts end.
func TestVerbRunsAlone(t *testing.T) {
	n := newNode(t)
	n.configure("10-one.conflist", fmt.Sprintf(oneList, "1.1.0"))
	log, release := held(n, "GC", "")
	p := New(n.config)
	old := n.pod("pod-old")
	r := mustSetup(t, p, old)
	done := make(chan error, 1)
	go func() { done <- p.Leftovers(old).Collect(t.Context()) }()
	waitFor(t, log, "begin GC")

	young := n.pod("pod-young")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	checkError(t, test.Err(p.Setup(ctx, young)), errdefs.IsDeadlineExceeded, "garbage collection")
	checkError(t, p.Teardown(ctx, old, r), errdefs.IsDeadlineExceeded, "garbage collection")
	time.AfterFunc(50*time.Millisecond, func() { _ = os.WriteFile(release, nil, 0o600) })
	mustTeardown(t, p, young, mustSetup(t, p, young))
	mustTeardown(t, p, old, r)
	test.Check(t, <-done)
	all := waitFor(t, log, "end DEL pod-old")
	_, after, _ := strings.Cut(all, "begin GC")
	if !strings.HasPrefix(after, " \nend GC") {
		t.Errorf("a plugin ran during the GC:\n%s", all)
	}
	n.checkClean()
}

// GC waits for a running ADD without blocking the ADD of other pods.
func TestVerbWaitsForPlugins(t *testing.T) {
	n := newNode(t)
	n.configure("10-one.conflist", fmt.Sprintf(oneList, "1.1.0"))
	log, release := held(n, "ADD", "pod-slow")
	p := New(n.config)
	left := p.Leftovers()
	slow, quick := n.pod("pod-slow"), n.pod("pod-quick")
	added := make(chan error, 1)
	go func() {
		_, err := p.Setup(t.Context(), slow)
		added <- err
	}()
	waitFor(t, log, "begin ADD pod-slow")
	ctx, cancel := context.WithTimeout(t.Context(), 20*verbRetry)
	defer cancel()
	checkError(t, left.Collect(ctx), errdefs.IsDeadlineExceeded, "other plugins were running")
	done := make(chan error, 1)
	go func() { done <- left.Collect(t.Context()) }()
	mustTeardown(t, p, quick, mustSetup(t, p, quick))
	unblock(t, release)
	test.Check(t, errors.Join(<-added, <-done))
	if all := waitFor(t, log, "end GC"); strings.Index(all, "begin GC") < strings.Index(all, "end ADD pod-slow") {
		t.Errorf("the GC ran during an ADD:\n%s", all)
	}
	mustTeardown(t, p, slow, nil)
	n.checkClean()
}

// If a power cut lost the journal, leftover pods are disconnected with libcni's cache.
func TestCollectWithoutJournal(t *testing.T) {
	n := newSpyNode(t)
	kept, lost := n.pod("pod-kept"), fullPod(n)
	before := New(n.config)
	r := mustSetup(t, before, kept)
	mustSetup(t, before, lost)
	test.Must(t, os.RemoveAll(string(before.journal)))
	test.Must(t, collect(t, New(n.config), kept))
	calls := n.called("second")
	add, del := calls[1], calls[2]
	if len(calls) != 3 || del.environ["CNI_COMMAND"] != "DEL" || del.stdin["prevResult"] == nil {
		t.Errorf("%d calls, the last with %v", len(calls), del)
	}
	for _, key := range []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"} {
		if del.environ[key] != add.environ[key] {
			t.Errorf("%s is %q, and was %q", key, del.environ[key], add.environ[key])
		}
	}
	if !reflect.DeepEqual(del.stdin["runtimeConfig"], add.stdin["runtimeConfig"]) {
		t.Errorf("runtimeConfig is %v, and was %v", del.stdin["runtimeConfig"], add.stdin["runtimeConfig"])
	}
	mustTeardown(t, New(n.config), kept, r)
	n.checkClean()
}

// A power cut may leave a journal's file without its content: the pods are disconnected
// with libcni's cache or, without a cache, with the current configuration.
func TestDamagedJournal(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "cut off": `{"id": "pod-`, "zeroes": "\x00\x00\x00"} {
		for _, cached := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/cache %t", name, cached), func(t *testing.T) {
				n := newSpyNode(t)
				removed, collected := n.pod("pod-removed"), n.pod("pod-collected")
				before := New(n.config)
				for _, pod := range []Pod{removed, collected} {
					mustSetup(t, before, pod)
					test.Must(t, os.WriteFile(before.journal.path(pod.ID), []byte(content), 0o600))
				}
				if !cached {
					test.Must(t, os.RemoveAll(filepath.Join(n.config.CacheDir, "results")))
				}
				p := New(n.config)
				leftovers := p.Leftovers(removed)
				test.Checkf(t, p.Teardown(t.Context(), removed, nil), "teardown of a pod with a record")
				test.Checkf(t, leftovers.Collect(t.Context()), "collection of a pod without a record")
				test.Equal(t, "commands", n.commands("first"), "ADD ADD DEL DEL")
				n.checkClean()
			})
		}
	}
}
