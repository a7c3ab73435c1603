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

// collect does what a start of the daemon does.
func collect(t *testing.T, p *Plugins, valid ...Pod) error {
	t.Helper()
	return p.Leftovers(valid...).Collect(t.Context())
}

// unfinished leaves a pod of which neither ADD nor DEL works: its journal.
func unfinished(t *testing.T, n *node) (entry string) {
	t.Helper()
	n.configure("10-spied.conflist", `{"cniVersion": "1.0.0", "name": "spied", "plugins": [{"type": "first"}, {"type": "not-there"}]}`)
	n.spy("first", "")
	n.spy("not-there", "exit 1")
	pod := n.pod("pod-broken")
	if _, err := New(n.config).Setup(t.Context(), pod); err == nil {
		t.Fatal("no error")
	}
	entry = filepath.Join(n.config.CacheDir, "journal", pod.ID+".json")
	if err := collect(t, New(n.config)); err == nil || !strings.Contains(err.Error(), pod.ID) {
		t.Fatalf("a collection without a plugin: %v", err)
	}
	return entry
}

// A network that was mended takes back what it gave before.
func TestCollectByTheMendedConfiguration(t *testing.T) {
	n := newNode(t)
	entry := unfinished(t, n)
	n.configure("10-spied.conflist", `{"cniVersion": "1.0.0", "name": "spied", "plugins": [{"type": "first"}]}`)
	test.Must(t, collect(t, New(n.config)))
	test.ErrorIs(t, test.Err(os.Stat(entry)), os.ErrNotExist, "it is not forgotten")
	n.checkClean()
}

// What cannot be disconnected for a day is not tried for ever.
func TestCollectGivesUp(t *testing.T) {
	n := newNode(t)
	path := unfinished(t, n)
	if err := collect(t, New(n.config)); err == nil {
		t.Fatal("it was given up at once")
	}
	p := New(n.config)
	entry, err := p.journal.read("pod-broken")
	if err != nil || entry.FailedSince.IsZero() || time.Since(entry.FailedSince) > time.Minute {
		t.Fatalf("%+v, %v", entry, err)
	}
	entry.FailedSince = entry.FailedSince.Add(-giveUpAfter)
	test.Must(t, p.journal.write(entry))
	test.Checkf(t, collect(t, p), "a collection that gives up")
	test.ErrorIs(t, test.Err(os.Stat(path)), os.ErrNotExist, "it is not forgotten")
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
		t.Errorf("commands %s: disableGC is not heeded", got)
	}
}

// Another daemon may have pods on the network, which the verb would take for gone.
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

// held installs the plugin "first", which says in a log when it begins and ends,
// and does not end a command of the pod before the file that is returned is there.
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

// waitFor waits until a line is in the log, and returns all of it.
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

func letGo(t *testing.T, release string) {
	t.Helper()
	test.Must(t, os.WriteFile(release, nil, 0o600))
}

const oneList = `{"cniVersion": %q, "name": "one", "plugins": [{"type": "first"}]}`

// A leftover of which the DEL hangs is no other pod's concern.
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
		t.Errorf("the collection went on:\n%s", all)
	}
	letGo(t, release)
	test.Check(t, <-done)
	waitFor(t, log, "end GC")
	n.checkClean()
}

// Each leftover has its own time, and the verb comes when all had it.
func TestCollectBoundsEachPod(t *testing.T) {
	n := newNode(t)
	n.configure("10-one.conflist", fmt.Sprintf(oneList, "1.1.0"))
	log, release := held(n, "DEL", "pod-hangs")
	mustSetup(t, New(n.config), n.pod("pod-hangs"))
	p := New(n.config)
	p.undoTimeout = 100 * time.Millisecond
	checkError(t, collect(t, p), errdefs.IsDeadlineExceeded, "pod-hangs", "killed before it finished")
	if all := waitFor(t, log, "end GC"); strings.Count(all, "begin DEL") > 1 { // it may be killed before it says so
		t.Errorf("the same DEL was tried more than once:\n%s", all)
	}
	if entry, err := p.journal.read("pod-hangs"); err != nil || entry == nil || entry.FailedSince.IsZero() {
		t.Errorf("the next start does not know of it: %+v, %v", entry, err)
	}
	letGo(t, release)
	test.Check(t, collect(t, New(n.config)))
	n.checkClean()
}

// CNI: no ADD and no DEL beside a GC. Pods wait for it as long as their callers do.
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
		t.Errorf("a plugin ran beside the verb:\n%s", all)
	}
	n.checkClean()
}

// The verb waits for an ADD without keeping other pods from theirs.
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
	letGo(t, release)
	test.Check(t, errors.Join(<-added, <-done))
	if all := waitFor(t, log, "end GC"); strings.Index(all, "begin GC") < strings.Index(all, "end ADD pod-slow") {
		t.Errorf("the verb ran beside ADD:\n%s", all)
	}
	mustTeardown(t, p, slow, nil)
	n.checkClean()
}

// A power cut may have taken the journal, but not what libcni wrote before.
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

// A power cut may leave a journal's file and not what was in it: the pods are
// disconnected by libcni's cache, or else by the present configuration.
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
				test.Checkf(t, p.Teardown(t.Context(), removed, nil), "a pod of which there is a record")
				test.Checkf(t, leftovers.Collect(t.Context()), "a pod of which there is none")
				test.Equal(t, "commands", n.commands("first"), "ADD ADD DEL DEL")
				n.checkClean()
			})
		}
	}
}
