package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestStartPublishesWhatProbesFound(t *testing.T) {
	b := &bed{t: t, dir: t.TempDir(), failures: map[string]error{"/k": errors.New("no kvm")}, pods: map[string]int{"old": 2}}
	b.open(broken(conf("runc", "/r", "kata", "/k"), "lost", "lost.toml:3: typo"))
	if got := b.published[0]; got.Generation != 1 || got.Entries[0].State.AcceptsPods() {
		t.Errorf("before the probes, the plan is %+v", got)
	}
	want := map[string]handler.State{
		"kata": {Phase: handler.NotReady, Reason: "no kvm"},
		"lost": {Phase: handler.NotReady, Reason: "lost.toml:3: typo"},
		"old":  {Phase: handler.Draining, Reason: "no longer configured; removed with its last pod"},
		"runc": {Phase: handler.Ready},
	}
	for _, h := range b.m.Handlers() {
		if !h.State.Same(want[h.Definition.Name]) {
			t.Errorf("%s is %+v", h.Definition.Name, h.State)
		}
		delete(want, h.Definition.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing handlers: %v", want)
	}
	runc, err := b.m.Handler("runc")
	if err != nil || !runc.Default || !runc.Configured || runc.Runtime == nil || runc.Since != 1 {
		t.Errorf("got %+v, %v", runc, err)
	}
	if now := b.m.Current(); now.Generation != 1 {
		t.Errorf("the first generation that serves pods is %d", now.Generation)
	}
	b.set(func() { b.failures["/r"] = errors.New("gone") })
	b.must(b.reload(conf("runc", "/r", "kata", "/k")))
	if now := b.m.Current(); now.Generation != 2 {
		t.Errorf("the next generation is %d", now.Generation)
	}
}

func TestReloadIsOneTransaction(t *testing.T) {
	b := newBed(t, conf("runc", "/r", "kata", "/k"))
	before := b.last()
	b.set(func() { b.failures["/c"] = errors.New("c is not there"); b.pods["kata"] = 1 })
	o := b.must(b.reload(conf("crun", "/c", "runc", "/r2")))
	if !o.Changed || !slices.Equal(o.Diff.Added, []string{"crun"}) || !slices.Equal(o.Diff.Removed, []string{"kata"}) ||
		!slices.Equal(o.Diff.Changed, []string{"runc"}) || o.NotReady["crun"] != "c is not there" {
		t.Errorf("got %+v", o)
	}
	now := b.last()
	if now.Generation != before.Generation+1 || now.Default != "crun" || o.Generation != now.Generation || o.Digest != now.Digest || now.Digest == before.Digest {
		t.Errorf("one reload published %d plans; the last one is %+v", now.Generation-before.Generation, now)
	}
	if b.phase("runc") != handler.Ready || b.phase("crun") != handler.NotReady || b.phase("kata") != handler.Draining {
		t.Errorf("got %+v", now.Entries)
	}
	e, _ := now.entry("kata")
	if e.Definition.Path != "/k" {
		t.Errorf("the removed handler has the Definition %+v", e.Definition)
	}
	if again := b.must(b.reload(conf("crun", "/c", "runc", "/r2"))); again.Changed || again.Generation != now.Generation || b.last() != now {
		t.Errorf("a reload of the same configuration is %+v", again)
	}
}

func TestABadFileChangesNothing(t *testing.T) {
	b := newBed(t, conf("runc", "/r"))
	before, events := b.last(), b.m.Watch(t.Context())
	b.set(func() {
		b.loadErr = config.Problems{{Origin: config.Origin{File: "/etc/berth/conf.d/k.toml", Line: 3, Column: 1}, Key: "runtimes.kata.path", Message: "unknown key"}}
		b.next = nil
	})
	o, err := b.m.Reload(t.Context(), TriggerSignal)
	if err == nil || o.Error == nil || o.Changed || b.last() != before {
		t.Fatalf("got %+v, %v", o, err)
	}
	if want := "/etc/berth/conf.d/k.toml:3:1: runtimes.kata.path: unknown key"; !slices.Equal(o.Problems, []string{want}) {
		t.Errorf("the problems are %q", o.Problems)
	}
	if e := <-events; e.Outcome == nil || e.Outcome.Error == nil || len(e.Handlers) != 0 {
		t.Errorf("watchers get %+v", e)
	}
	if c := b.m.Current(); c.Last == nil || c.Last.Error == nil || c.Generation != before.Generation || c.Config.DefaultRuntime != "runc" {
		t.Errorf("current is %+v", c)
	}
	if o := b.must(b.reload(conf("runc", "/r"))); o.Error != nil || b.m.Current().Last.Error != nil {
		t.Errorf("after the file was repaired: %+v", o)
	}
	test.EqualLists(t, "announced", b.announced, []string{"reloading", "reloaded", "reloading", "reloaded"})
}

// A start with the last accepted configuration is reported as a failed reload until a reload
// accepts the files.
func TestAStartWithTheLastAcceptedConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mistake := config.Problems{{Origin: config.Origin{File: "/etc/berth/config.toml", Line: 3, Column: 1}, Key: "log.levl", Message: "unknown key"}}
		start := conf("runc", "/r")
		start.Rejected, start.ReadAt, start.Handlers.Watch = mistake, time.Now().Add(-time.Hour), false
		b := &bed{t: t, dir: t.TempDir(), loadErr: mistake}
		b.open(start)
		look := func() {
			b.m.reloads.request(request{trigger: TriggerFiles, patient: true, silent: true})
			time.Sleep(settle)
			synctest.Wait()
		}
		look()
		c := b.m.Current()
		if c.Last == nil || c.Last.Trigger != TriggerStart || !slices.Equal(c.Last.Problems, []string{mistake[0].Error()}) {
			t.Fatalf("the last outcome is %+v", c.Last)
		}
		if !c.Loaded.Equal(start.ReadAt) || b.phase("runc") != handler.Ready || len(b.announced) > 0 {
			t.Errorf("the configuration is of %s, runc is %s, announced: %v", c.Loaded, b.phase("runc"), b.announced)
		}
		if !b.m.counts.failed || !b.m.counts.success.Equal(start.ReadAt) {
			t.Errorf("the metrics are %+v", b.m.counts)
		}
		all, err := b.m.Changes("")
		if err != nil || len(all) != 2 || all[0].To != "rejected" || all[0].By != "start" || all[0].Reason != mistake[0].Error() {
			t.Errorf("the history is %+v, %v", all, err)
		}
		b.must(b.reload(conf("runc", "/r")))
		if c := b.m.Current(); c.Last.Error != nil || b.m.counts.failed {
			t.Errorf("after the files were repaired, the last outcome is %+v", c.Last)
		}
		b.close()
	})
}

// InForce is called with each accepted configuration, also if no route changes, and never with
// a rejected one.
func TestWhatIsInForceIsTold(t *testing.T) {
	start := conf("runc", "/r")
	b := newBed(t, start)
	if !slices.Equal(b.inForce, []*config.Config{start}) {
		t.Fatalf("after the start, InForce was called %d times", len(b.inForce))
	}
	b.set(func() { b.loadErr = errors.New("a mistake") })
	test.Fails(t, test.Err(b.m.Reload(t.Context(), TriggerAdmin)), "the reload of a mistake succeeded")
	b.set(func() { b.refuse = errors.New("refused") })
	test.Fails(t, test.Err(b.reload(conf("crun", "/c"))), "the reload of a refused plan succeeded")
	if len(b.inForce) != 1 {
		t.Errorf("InForce was called %d times", len(b.inForce))
	}
	b.set(func() { b.refuse = nil })
	same := conf("runc", "/r")
	b.must(b.reload(same))
	if len(b.inForce) != 2 || b.inForce[1] != same {
		t.Errorf("InForce was called %d times", len(b.inForce))
	}
}

func TestATableThatIsRefusedChangesNothing(t *testing.T) {
	b := newBed(t, conf("runc", "/r"))
	before := b.last()
	b.set(func() { b.refuse = errors.New("refused") })
	if _, err := b.reload(conf("crun", "/c")); err == nil || b.m.Current().Default != "runc" {
		t.Errorf("got %v; the default is %s", err, b.m.Current().Default)
	}
	test.Fails(t, b.m.Cordon(t.Context(), "runc", "", "uid 0"), "the cordon succeeded although its plan was refused")
	b.set(func() { b.refuse = nil })
	b.close()
	b.open(conf("runc", "/r"))
	if b.phase("runc") != handler.Ready || before.Default != "runc" {
		t.Error("a refused cordon is in force after a restart")
	}
}

func TestARemovedHandlerDrains(t *testing.T) {
	b := newBed(t, conf("runc", "/r", "kata", "/k"))
	b.set(func() { b.pods["kata"] = 2 })
	b.must(b.reload(conf("runc", "/r")))
	if b.phase("kata") != handler.Draining {
		t.Fatalf("kata is %q", b.phase("kata"))
	}
	b.must(b.reload(conf("runc", "/r", "kata", "/k")))
	test.Equal(t, "kata, configured again", b.phase("kata"), handler.Ready)
	b.must(b.reload(conf("runc", "/r")))
	b.set(func() { delete(b.pods, "kata") })
	b.wait("kata is removed after its last pod", func() bool { return b.phase("kata") == "" })
	// This pod was starting when its handler was removed.
	b.set(func() { b.pods["kata"] = 1 })
	b.wait("the handler of a late pod drains", func() bool { return b.phase("kata") == handler.Draining })
}

func TestIntentsSurviveRestarts(t *testing.T) {
	b := newBed(t, conf("runc", "/r", "kata", "/k"))
	test.Must(t, b.m.Cordon(t.Context(), "kata", " new  kernel\n", "uid 0"))
	test.Must(t, b.m.Drain(t.Context(), "runc", "", "uid 0"))
	b.close()
	b.open(conf("runc", "/r", "kata", "/k"))
	h, err := b.m.Handler("kata")
	if err != nil || !h.State.Same(handler.State{Phase: handler.Cordoned, Reason: "new kernel"}) || h.Intent.By != "uid 0" || h.Intent.Kind != Cordon || h.Intent.Since.IsZero() {
		t.Errorf("got %+v, %v", h, err)
	}
	test.Equal(t, "runc", b.phase("runc"), handler.Draining)
	for _, name := range []string{"kata", "runc"} {
		if err := b.m.Uncordon(t.Context(), name); err != nil || b.phase(name) != handler.Ready {
			t.Errorf("%s: %v, %q", name, err, b.phase(name))
		}
	}
	b.close()
	b.open(conf("runc", "/r", "kata", "/k"))
	if b.phase("kata") != handler.Ready {
		t.Error("a cordon that was undone is in force after a restart")
	}
}

func TestIntentsThatCannotBeKept(t *testing.T) {
	b := newBed(t, conf("runc", "/r"))
	for name, c := range map[string]struct {
		err  error
		is   func(error) bool
		says string
	}{
		"an unknown handler":             {b.m.Cordon(t.Context(), "rnc", "", "uid 0"), errdefs.IsNotFound, `did you mean "runc"?`},
		"a long reason":                  {b.m.Cordon(t.Context(), "runc", strings.Repeat("x", 300), "uid 0"), errdefs.IsInvalidArgument, "the limit is 256"},
		"an unknown handler to uncordon": {b.m.Uncordon(t.Context(), "rnc"), errdefs.IsNotFound, "rnc"},
	} {
		if c.err == nil || !c.is(c.err) || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	// With a directory in place of the file, each write fails.
	file := filepath.Join(b.dir, "root", "intents.json")
	test.Must(t, os.MkdirAll(filepath.Join(file, "x"), 0o755))
	if err := b.m.Cordon(t.Context(), "runc", "", "uid 0"); err == nil || b.phase("runc") != handler.Ready {
		t.Errorf("got %v; runc is %q", err, b.phase("runc"))
	}
	if left, err := filepath.Glob(filepath.Join(b.dir, "root", ".intents-*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	// A daemon that cannot read the file starts and reports a problem.
	b.close()
	b.open(conf("runc", "/r"))
	if p := b.m.Current().Problems; len(p) != 1 || !strings.Contains(p[0], file) {
		t.Errorf("problems are %q", p)
	}
}

func TestAVanishedBinary(t *testing.T) {
	start := conf("runc", "/r")
	start.Handlers.ProbeInterval = time.Second
	b := newBed(t, start)
	events := b.m.Watch(t.Context())
	b.set(func() { b.failures["/r"] = errors.New("/r does not exist") })
	b.wait("runc is not ready", func() bool { return b.phase("runc") == handler.NotReady })
	if e := <-events; !slices.Equal(e.Handlers, []string{"runc"}) || e.Generation != b.last().Generation {
		t.Errorf("watchers get %+v", e)
	}
	h, err := b.m.Handler("runc")
	if err != nil || h.Runtime == nil || h.ProbeError != "/r does not exist" {
		t.Errorf("got %+v, %v", h, err)
	}
	b.set(func() { delete(b.failures, "/r") })
	b.wait("runc is ready again", func() bool { return b.phase("runc") == handler.Ready })
}

func TestProbeOnDemand(t *testing.T) {
	b := newBed(t, conf("runc", "/r"))
	b.set(func() { b.failures["/r"] = errors.New("gone") })
	if h, err := b.m.Probe(t.Context(), "runc", probe.Ask); err != nil || h.State.Phase != handler.NotReady || h.State.Reason != "gone" {
		t.Errorf("got %+v, %v", h, err)
	}
	if !slices.Contains(b.checks, check{"/r", true}) {
		t.Errorf("the probe did not query the runtime: %v", b.checks)
	}
	test.Is(t, test.Err(b.m.Probe(t.Context(), "nothing", probe.Ask)), errdefs.IsNotFound, "probe of an unknown handler")
}

// A runtime that hangs affects only its own handler.
func TestARuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		b := &bed{t: t, dir: t.TempDir(), hanging: map[string]chan struct{}{"/h": hang}}
		b.open(conf("runc", "/r"))
		o := b.must(b.reload(conf("runc", "/r", "slow", "/h", "crun", "/c")))
		if o.Took > probeWait+time.Second || o.NotReady["slow"] != rollout.NotProbedYet || b.phase("crun") != handler.Ready {
			t.Errorf("got %+v", o)
		}
		// The late answer about the replaced Definition is ignored.
		b.must(b.reload(conf("runc", "/r", "slow", "/s")))
		close(hang)
		synctest.Wait()
		test.Equal(t, "slow", b.phase("slow"), handler.Ready)
		b.close()
	})
}

func TestALateAnswerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		b := &bed{t: t, dir: t.TempDir(), hanging: map[string]chan struct{}{"/h": hang}}
		b.open(conf("slow", "/h"))
		test.Equal(t, "slow", b.phase("slow"), handler.NotReady)
		close(hang)
		synctest.Wait()
		test.Equal(t, "slow", b.phase("slow"), handler.Ready)
		b.close()
	})
}

// All requests during a reload are coalesced into one more reload, which begins
// after the last of them.
func TestReloadsCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t: t, dir: t.TempDir(), next: conf("runc", "/r")}
		b.open(b.next)
		release := make(chan struct{})
		var loads atomic.Int32
		b.set(func() {
			b.loading = func() {
				switch loads.Add(1) {
				case 1:
					<-release
				case 2:
					b.set(func() { b.next = conf("runc", "/r", "crun", "/c") })
				}
			}
		})
		var all sync.WaitGroup
		all.Go(func() {
			if o, err := b.m.Reload(t.Context(), TriggerSignal); err != nil || o.Changed {
				t.Errorf("the first reload is %+v, %v", o, err)
			}
		})
		synctest.Wait()
		for range 100 {
			b.m.Request(TriggerSignal)
		}
		all.Go(func() {
			o, err := b.m.Reload(t.Context(), TriggerAdmin)
			if err != nil || !slices.Equal(o.Diff.Added, []string{"crun"}) || o.Trigger != TriggerAdmin {
				t.Errorf("the second reload is %+v, %v", o, err)
			}
		})
		synctest.Wait()
		close(release)
		all.Wait()
		if n := loads.Load(); n != 2 {
			t.Errorf("102 requests caused %d reloads", n)
		}
		b.close()
	})
}

func TestAnEditorIsGivenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t: t, dir: t.TempDir(), loadErr: errors.New("half a file")}
		b.open(conf("runc", "/r"))
		b.m.reloads.filesChanged()
		synctest.Wait()
		if b.loads != 1 || b.m.Current().Last != nil {
			t.Errorf("after %d loads the outcome is %+v", b.loads, b.m.Current().Last)
		}
		b.set(func() { b.loadErr, b.next = nil, conf("runc", "/r", "crun", "/c") })
		time.Sleep(settle)
		synctest.Wait()
		if last := b.m.Current().Last; last == nil || last.Error != nil || b.phase("crun") != handler.Ready {
			t.Errorf("the outcome is %+v", last)
		}
		// A file that stays incomplete is a mistake.
		b.set(func() { b.loadErr = errors.New("half a file") })
		b.m.reloads.filesChanged()
		time.Sleep(settle)
		synctest.Wait()
		if last := b.m.Current().Last; last.Error == nil || last.Trigger != TriggerFiles {
			t.Errorf("the outcome is %+v", last)
		}
		b.close()
	})
}

// A poll of the files is announced only if it finds a new mistake, the end of a
// mistake, or changed keys.
func TestWhatIsFoundByLookingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t: t, dir: t.TempDir(), next: conf("runc", "/r")}
		b.open(b.next)
		found := func() *Outcome {
			b.m.reloads.request(request{trigger: TriggerFiles, patient: true, silent: true})
			synctest.Wait()
			time.Sleep(settle)
			synctest.Wait()
			return b.m.Current().Last
		}
		if last := found(); last != nil || len(b.announced) > 0 {
			t.Fatalf("nothing has changed, but the outcome is %+v", last)
		}
		b.set(func() { b.loadErr = errors.New("a mistake") })
		if last := found(); last == nil || last.Error == nil || len(b.announced) != 1 {
			t.Fatalf("the outcome is %+v, announced: %v", last, b.announced)
		}
		if found(); len(b.announced) != 1 {
			t.Errorf("the same mistake was announced again: %v", b.announced)
		}
		b.set(func() { b.loadErr = nil })
		if last := found(); last.Error != nil || len(b.announced) != 2 {
			t.Errorf("the mistake is corrected, but the outcome is %+v, announced: %v", last, b.announced)
		}
		louder := conf("runc", "/r")
		louder.Log.Level = "debug"
		b.set(func() { b.next = louder })
		if last := found(); len(last.Diff.Live) != 1 || len(b.announced) != 3 {
			t.Errorf("the outcome is %+v, announced: %v", last, b.announced)
		}
		if found(); len(b.announced) != 3 {
			t.Errorf("nothing has changed, but announced: %v", b.announced)
		}
		b.close()
	})
}

func TestKeysThatNeedARestart(t *testing.T) {
	start := conf("runc", "/r")
	start.Log.Level = "info"
	b := newBed(t, start)
	next := conf("runc", "/r", "crun", "/c")
	next.Log.Level, next.Streaming.Port, next.Handlers.AdvertiseNotReady = "debug", 99, true
	next.Engine.CgroupPrefix = "cri-containerd"
	o := b.must(b.reload(next))
	if len(o.Diff.Pending) != 1 || o.Diff.Pending[0].Key != "streaming.port" || o.Diff.Pending[0].From != "0" || o.Diff.Pending[0].To != "99" {
		t.Errorf("the keys that need a restart are %v", o.Diff.Pending)
	}
	c := b.m.Current()
	if c.Config.Streaming.Port != 0 || c.Config.Log.Level != "debug" || len(c.NeedRestart) != 1 || !b.last().AdvertiseNotReady {
		t.Errorf("the current state is %+v", c)
	}
	if b.phase("crun") != handler.Ready {
		t.Error("the new handler is not ready before a restart")
	}
	if next.Streaming.Port != 99 {
		t.Error("the loader's configuration was changed")
	}
	again := b.must(b.reload(next))
	if again.Changed || len(again.Diff.Pending) != 1 {
		t.Errorf("got %+v", again)
	}
	back := conf("runc", "/r", "crun", "/c")
	back.Log.Level, back.Handlers.AdvertiseNotReady, back.Engine.CgroupPrefix = "debug", true, "cri-containerd"
	if o := b.must(b.reload(back)); len(o.Diff.Pending) != 0 || len(b.m.Current().NeedRestart) != 0 {
		t.Errorf("got %+v", o)
	}
}

// engine.cgroup_prefix takes effect at once, although no handler changes.
func TestCgroupPrefixIsLive(t *testing.T) {
	b := newBed(t, conf("runc", "/r"))
	next := conf("runc", "/r")
	next.Engine.CgroupPrefix = "cri-containerd"
	o := b.must(b.reload(next))
	if !o.Changed || len(o.Diff.Pending) != 0 || len(o.Diff.Live) != 1 || o.Diff.Live[0].Key != "engine.cgroup_prefix" {
		t.Errorf("the outcome is %+v", o)
	}
	test.Equal(t, "the prefix of new pods", b.last().CgroupPrefix, "cri-containerd")
	if o := b.must(b.reload(next)); o.Changed {
		t.Errorf("a reload of the same configuration is a change: %+v", o)
	}
}

func TestSinceIsTheDefinitions(t *testing.T) {
	b := newBed(t, conf("runc", "/r", "crun", "/c"))
	test.Must(t, b.m.Cordon(t.Context(), "crun", "", "uid 0"))
	o := b.must(b.reload(conf("runc", "/new", "crun", "/c")))
	since := map[string]uint64{}
	for _, e := range b.last().Entries {
		since[e.Definition.Name] = e.Since
	}
	if since["crun"] != 1 || since["runc"] != o.Generation {
		t.Errorf("in generation %d: %v", o.Generation, since)
	}
}

func TestWatchersThatAreSlowMissNothing(t *testing.T) {
	b := newBed(t, conf("runc", "/r", "crun", "/c"))
	ctx, cancel := context.WithCancel(t.Context())
	events := b.m.Watch(ctx)
	for _, name := range []string{"crun", "runc"} {
		test.Must(t, b.m.Cordon(t.Context(), name, "", "uid 0"))
	}
	b.must(b.reload(conf("runc", "/r")))
	if e := <-events; !slices.Equal(e.Handlers, []string{"crun", "runc"}) || e.Generation != b.last().Generation || e.Outcome == nil {
		t.Errorf("got %+v", e)
	}
	cancel()
	if _, open := <-events; open {
		t.Error("the channel is open although the watcher's context ended")
	}
	left := b.m.Watch(t.Context())
	b.close()
	if _, open := <-left; open {
		t.Error("a watcher's channel is open after Close")
	}
	if _, open := <-b.m.Watch(t.Context()); open {
		t.Error("a closed Manager accepts watchers")
	}
	test.ErrorIs(t, test.Err(b.m.Reload(t.Context(), TriggerAdmin)), errClosed, "reload of a closed Manager")
}
