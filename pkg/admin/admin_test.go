package admin_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// TestRegisterWaitsForTheProbe: the probe takes longer than a reload waits for it.
func TestRegisterWaitsForTheProbe(t *testing.T) {
	b := newBed(t)
	slow := make(chan struct{})
	answer := sync.OnceFunc(func() { close(slow) })
	defer answer()
	b.node.mu.Lock()
	b.node.slow = slow
	b.node.mu.Unlock()
	var resp *adminv1.RegisterHandlerResponse
	var err error
	var registering sync.WaitGroup
	registering.Go(func() { resp, err = b.RegisterHandler(t.Context(), b.crun()) })
	test.Eventually(t, "the reload has ended", func() bool {
		h, err := b.manager.Handler("crun")
		return err == nil && h.State.Reason == rollout.NotProbedYet
	})
	again := make(chan error, 1)
	go func() { again <- test.Err(b.RegisterHandler(t.Context(), b.crun())) }()
	select {
	case err := <-again:
		test.Equal(t, "another registration", status.Code(err), codes.AlreadyExists)
	case <-time.After(30 * time.Second):
		t.Error("another registration waits for the probe")
	}
	answer()
	registering.Wait()
	if err != nil || resp.GetHandler().GetState() != adminv1.State_STATE_READY {
		t.Errorf("%v: %v", resp.GetHandler(), err)
	}
}

func TestHandlers(t *testing.T) {
	b := newBed(t)
	b.node.run("a", "one", b.definition("runc"))
	resp, err := b.ListHandlers(t.Context(), &adminv1.ListHandlersRequest{})
	if err != nil || len(resp.GetHandlers()) != 1 {
		t.Fatalf("%v: %v", resp, err)
	}
	h := resp.GetHandlers()[0]
	if h.GetName() != "runc" || !h.GetIsDefault() || h.GetState() != adminv1.State_STATE_READY || h.GetPods() != 1 ||
		h.GetRuntimeName() != "runc" || h.GetRuntimeVersion() != "1.2.3" || h.GetType() != "oci" || h.GetManaged() ||
		h.GetOrigin() != b.path("config.toml")+":2" || len(h.GetDigest()) != 64 || resp.GetGeneration() == 0 {
		t.Errorf("got %v", h)
	}
	want := (&node{}).Capabilities(t.Context(), nil, nil)
	if got := client.Capabilities(h); !reflect.DeepEqual(got, want) {
		t.Errorf("the capabilities are %+v", got)
	}
	one, err := b.GetHandler(t.Context(), &adminv1.GetHandlerRequest{})
	if err != nil || one.GetHandler().GetName() != "runc" || one.GetBinary().GetPath() != b.path("bin/runc") {
		t.Errorf("the default handler: %v, %v", one, err)
	}
	if i := slices.IndexFunc(one.GetSettings(), func(s *adminv1.Setting) bool { return s.GetKey() == "runtime_path" }); i < 0 ||
		one.GetSettings()[i].GetOrigin() != b.path("config.toml")+":3" {
		t.Errorf("settings are %v", one.GetSettings())
	}
	_, err = b.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "rumc"})
	if e := b.failure(err); e.Code != codes.NotFound || !strings.Contains(e.Text, `did you mean "runc"?`) {
		t.Errorf("got %v: %s", e.Code, e.Text)
	}
}

func TestANewHandlerThatCannotRunPods(t *testing.T) {
	b := newBed(t)
	b.node.breaks(b.path("bin/crun"), true)
	resp, err := b.RegisterHandler(t.Context(), b.crun())
	if err != nil || resp.GetHandler().GetState() != adminv1.State_STATE_NOT_READY || !strings.Contains(resp.GetHandler().GetReason(), "does not answer") {
		t.Fatalf("%v, %v", resp, err)
	}
	s, err := b.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || len(s.GetDegraded()) != 1 || !strings.HasPrefix(s.GetDegraded()[0], "handler crun is not ready: ") || s.GetHandlersReady() != 1 || s.GetHandlers() != 2 {
		t.Errorf("%v, %v", s, err)
	}
	b.node.breaks(b.path("bin/crun"), false)
	probed, err := b.Probe(t.Context(), &adminv1.ProbeRequest{Name: "crun"})
	if err != nil || probed.GetHandler().GetState() != adminv1.State_STATE_READY || probed.GetHandler().GetProbedAt() == nil {
		t.Errorf("probed: %v, %v", probed, err)
	}
}

func TestCordonAndUncordon(t *testing.T) {
	b := newBed(t)
	cordoned, err := b.Cordon(t.Context(), &adminv1.CordonRequest{Name: "runc", Reason: "broken disk"})
	if err != nil || cordoned.GetHandler().GetState() != adminv1.State_STATE_CORDONED || cordoned.GetHandler().GetReason() != "broken disk" {
		t.Errorf("%v, %v", cordoned, err)
	}
	if s, err := b.GetStatus(t.Context(), &adminv1.GetStatusRequest{}); err != nil || len(s.GetDegraded()) > 0 {
		t.Errorf("a cordon counts as degraded: %v, %v", s, err)
	}
	back, err := b.Uncordon(t.Context(), &adminv1.UncordonRequest{Name: "runc"})
	if err != nil || back.GetHandler().GetState() != adminv1.State_STATE_READY {
		t.Errorf("%v, %v", back, err)
	}
	_, err = b.Cordon(t.Context(), &adminv1.CordonRequest{Name: "nothing"})
	if e := b.failure(err); e.Code != codes.NotFound {
		t.Errorf("got %v: %s", e.Code, e.Text)
	}
	_, err = b.Cordon(t.Context(), &adminv1.CordonRequest{Name: "runc", Reason: strings.Repeat("x", 1000)})
	if e := b.failure(err); e.Code != codes.InvalidArgument {
		t.Errorf("got %v: %s", e.Code, e.Text)
	}
}

func TestDrainReportsUntilEmpty(t *testing.T) {
	b := newBed(t)
	b.node.run("a", "one", b.definition("runc"))
	b.node.run("b", "two", b.definition("runc"))
	stream := test.Value(b.Drain(t.Context(), &adminv1.DrainRequest{Name: "runc"}))(t)
	for _, step := range []struct {
		names []string
		next  func()
	}{
		{[]string{"default/one", "default/two"}, func() { b.node.end("a") }},
		{[]string{"default/two"}, func() { b.node.end("b") }},
		{nil, func() {}},
	} {
		resp, err := stream.Recv()
		if err != nil || int(resp.GetPods()) != len(step.names) || !slices.Equal(resp.GetNames(), step.names) {
			t.Fatalf("%v, %v; want %v", resp, err, step.names)
		}
		step.next()
	}
	test.Fails(t, test.Err(stream.Recv()), "the stream continues after the last pod")
	if h, err := b.manager.Handler("runc"); err != nil || h.State.AcceptsPods() {
		t.Errorf("after the last pod, the handler is %v, %v", h.State, err)
	}
}

func TestDrainIsCancelled(t *testing.T) {
	b := newBed(t)
	b.node.run("a", "one", b.definition("runc"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := test.Value(b.Drain(ctx, &adminv1.DrainRequest{Name: "runc"}))(t)
	test.Must(t, test.Err(stream.Recv()))
	cancel()
	if _, err := stream.Recv(); b.failure(err).Code != codes.Canceled {
		t.Errorf("got %v", err)
	}
	if h, err := b.manager.Handler("runc"); err != nil || h.State.AcceptsPods() {
		t.Errorf("the handler is %v, %v", h.State, err)
	}
}

func TestWatch(t *testing.T) {
	b := newBed(t)
	stream := test.Value(b.WatchHandlers(t.Context(), &adminv1.WatchHandlersRequest{}))(t)
	if resp, err := stream.Recv(); err != nil || len(resp.GetHandlers()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	test.Must(t, test.Err(b.RegisterHandler(t.Context(), b.crun())))
	for {
		resp := test.Value(stream.Recv())(t)
		if len(resp.GetHandlers()) == 2 {
			return
		}
	}
}

func TestReload(t *testing.T) {
	b := newBed(t)
	b.write("conf.d/10.toml", "[runtimes.crun]\nruntime_path = \"$DIR/bin/crun\"\n[metrics]\naddress = \"127.0.0.1:1\"\n", 0o644)
	resp, err := b.Reload(t.Context(), &adminv1.ReloadRequest{})
	if err != nil || !resp.GetAccepted() || !slices.Equal(resp.GetChanges(), []string{"handler crun: added"}) ||
		len(resp.GetNeedsRestart()) != 1 || !strings.HasPrefix(resp.GetNeedsRestart()[0], "metrics.address: ") || resp.GetTook().AsDuration() <= 0 {
		t.Errorf("%v, %v", resp, err)
	}
	before := resp.GetDigest()

	b.write("conf.d/10.toml", "[runtimes.crun]\nruntime_path = 1\n", 0o644)
	resp, err = b.Reload(t.Context(), &adminv1.ReloadRequest{})
	if err != nil || resp.GetAccepted() || resp.GetDigest() != before || len(resp.GetProblems()) != 1 ||
		resp.GetProblems()[0].GetLine() != 2 || resp.GetProblems()[0].GetKey() != "runtimes.crun.runtime_path" {
		t.Errorf("%v, %v", resp, err)
	}
	s, err := b.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || len(s.GetDegraded()) != 1 || len(s.GetProblems()) != 1 || len(s.GetNeedsRestart()) != 1 {
		t.Errorf("%v, %v", s, err)
	}
	if resp, err := b.Reload(t.Context(), &adminv1.ReloadRequest{NoWait: true}); err != nil || resp.GetDigest() != before {
		t.Errorf("%v, %v", resp, err)
	}
}

// Scripts depend on the response of Reload: it must be the same if the files were already
// reloaded by their watcher.
func TestReloadTellsWhatSomebodyElseHasBrought(t *testing.T) {
	for name, c := range map[string]struct {
		text     string
		accepted bool
		notReady []string
		problems int
	}{
		"a handler that cannot run pods": {"[runtimes.crun]\nruntime_path = \"$DIR/bin/crun\"\n", true, []string{"crun"}, 0},
		"a mistake":                      {"[runtimes.crun]\nruntime_path = 1\n", false, nil, 1},
		"a mistake of another daemon":    {"[import]\ncrio = [\"$DIR/crio\"]\n", true, []string{"kata"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.node.breaks(b.path("bin/crun"), true)
			b.write("crio/10-kata", "[crio.runtime.runtimes.kata]\nruntime_path = \"relative\"\n", 0o644)
			b.write("conf.d/10.toml", c.text, 0o644)
			first, err := b.manager.Reload(t.Context(), lifecycle.TriggerFiles)
			if (err == nil) != c.accepted || (first.Error == nil) != c.accepted {
				t.Fatalf("reload by the watcher: %v, %v", first.Error, err)
			}
			for range 2 {
				resp, err := b.Reload(t.Context(), &adminv1.ReloadRequest{})
				if err != nil || resp.GetAccepted() != c.accepted || len(resp.GetChanges()) != 0 ||
					!slices.Equal(resp.GetNotReady(), c.notReady) || len(resp.GetProblems()) != c.problems {
					t.Errorf("%v, %v", resp, err)
				}
			}
		})
	}
}

func TestGetConfig(t *testing.T) {
	b := newBed(t)
	b.write("conf.d/10.toml", "[runtimes.crun]\nruntime_path = \"$DIR/bin/crun\"\n", 0o644)
	for inFiles, want := range map[bool]string{false: "", true: b.path("conf.d/10.toml") + ":2"} {
		resp := test.Value(b.GetConfig(t.Context(), &adminv1.GetConfigRequest{Files: inFiles}))(t)
		origin := ""
		for _, s := range resp.GetSettings() {
			if s.GetKey() == "runtimes.crun.runtime_path" {
				origin = s.GetOrigin()
			}
		}
		test.Equal(t, fmt.Sprintf("files %t: the origin of crun", inFiles), origin, want)
	}
	b.write("conf.d/10.toml", "x = 1\n", 0o644)
	_, err := b.GetConfig(t.Context(), &adminv1.GetConfigRequest{Files: true})
	if e := b.failure(err); !e.Invalid() || len(e.Problems) != 1 {
		t.Errorf("%v: %s", e.Code, e.Text)
	}
}

// A pod is outdated if a new one would get another program or another definition.
func TestPodsOfAReplacedProgramAreOutdated(t *testing.T) {
	b := newBed(t)
	b.node.run("a", "one", b.definition("runc"))
	outdated := func() (reason string) {
		t.Helper()
		all, err := b.ListPods(t.Context(), &adminv1.ListPodsRequest{})
		if err != nil || len(all.GetPods()) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		at, err := b.WhereIs(t.Context(), &adminv1.WhereIsRequest{Id: "a"})
		if err != nil || at.GetPod().GetPin().GetOutdatedReason() != all.GetPods()[0].GetPin().GetOutdatedReason() {
			t.Errorf("%v, %v", at, err)
		}
		pin := at.GetPod().GetPin()
		if pin.GetOutdated() != (pin.GetOutdatedReason() != "") {
			t.Errorf("the pin is %v", pin)
		}
		return pin.GetOutdatedReason()
	}
	test.Equal(t, "reason", outdated(), "")
	b.node.replace(b.path("bin/runc"), "def")
	test.Equal(t, "reason", outdated(), "a different binary is installed now: "+b.path("bin/runc")+" 1.2.4")
	// If the installed program is not known, the pod is not outdated.
	b.node.breaks(b.path("bin/runc"), true)
	test.Equal(t, "reason", outdated(), "")
	b.node.breaks(b.path("bin/runc"), false)
	b.node.replace(b.path("bin/runc"), "abc") // as it was
	test.Equal(t, "reason", outdated(), "")
	test.Must(t, test.Err(b.RegisterHandler(t.Context(), b.crun())))
	b.node.run("a", "one", b.definition("crun"))
	test.Must(t, test.Err(b.UpdateHandler(t.Context(), &adminv1.UpdateHandlerRequest{Name: "crun", Set: []*adminv1.Setting{{Key: "snapshotter", Value: `"native"`}}})))
	test.Equal(t, "reason", outdated(), "the definition of the handler has changed")
	test.Must(t, test.Err(b.RemoveHandler(t.Context(), &adminv1.RemoveHandlerRequest{Name: "crun"})))
	test.Equal(t, "reason", outdated(), "the handler is no longer configured")
}

func TestPodsAndWhereIs(t *testing.T) {
	b := newBed(t)
	test.Must(t, test.Err(b.RegisterHandler(t.Context(), b.crun())))
	b.node.run("a", "one", b.definition("runc"))
	b.node.run("b", "two", b.definition("crun"))
	test.Must(t, test.Err(b.UpdateHandler(t.Context(), &adminv1.UpdateHandlerRequest{Name: "crun", Set: []*adminv1.Setting{{Key: "snapshotter", Value: `"native"`}}})))
	all, err := b.ListPods(t.Context(), &adminv1.ListPodsRequest{})
	if err != nil || len(all.GetPods()) != 2 || all.GetPods()[0].GetId() != "a" || all.GetPods()[0].GetPin().GetOutdated() || !all.GetPods()[1].GetPin().GetOutdated() {
		t.Errorf("%v, %v", all, err)
	}
	some, err := b.ListPods(t.Context(), &adminv1.ListPodsRequest{Handler: "crun"})
	if err != nil || len(some.GetPods()) != 1 || some.GetPods()[0].GetName() != "two" {
		t.Errorf("%v, %v", some, err)
	}
	_, err = b.ListPods(t.Context(), &adminv1.ListPodsRequest{Handler: "nothing"})
	if e := b.failure(err); e.Code != codes.NotFound {
		t.Errorf("%v: %s", e.Code, e.Text)
	}

	at, err := b.WhereIs(t.Context(), &adminv1.WhereIsRequest{Id: "b-container"})
	if err != nil || at.GetSandbox() != "b" || at.GetContainer() != "b-container" || at.GetHandler() != "crun" || at.GetBackend() != "engine" ||
		len(at.GetPod().GetPin().GetBinaries()) != 1 {
		t.Errorf("%v, %v", at, err)
	}
	if one := at.GetPod().GetPin().GetBinaries()[0]; one.GetPath() != b.path("bin/crun") || one.GetRuns() != "/kept/runc" || one.GetDigest() != "abc" || one.GetVersion() != "1.2.3" {
		t.Errorf("the pod's binary is %v", one)
	}
	_, err = b.WhereIs(t.Context(), &adminv1.WhereIsRequest{Id: "zzz"})
	if e := b.failure(err); e.Code != codes.NotFound {
		t.Errorf("%v: %s", e.Code, e.Text)
	}
}
