package admin_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestPromoteAndAbort(t *testing.T) {
	b := newBed(t)
	_, err := b.Promote(t.Context(), &adminv1.PromoteRequest{Name: "runc"})
	if e := b.failure(err); e.Code != codes.FailedPrecondition {
		t.Errorf("without a candidate: %v %s", e.Code, e.Text)
	}
	b.write("bin/next", "#!/bin/sh\n", 0o755)
	resp := test.Value(b.RegisterHandler(t.Context(), b.crun(
		&adminv1.Setting{Key: "candidate.runtime_path", Value: `"` + b.path("bin/next") + `"`}, &adminv1.Setting{Key: "candidate.percent", Value: "10"})))(t)
	// The settings contain the keys of the candidate.
	one, err := b.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "crun"})
	if err != nil || !slices.ContainsFunc(one.GetSettings(), func(s *adminv1.Setting) bool { return s.GetKey() == "candidate.percent" && s.GetValue() == "10" }) {
		t.Errorf("error %v, the settings are %v", err, one.GetSettings())
	}
	if rollout := resp.GetHandler().GetRollout(); rollout.GetState() != "running" || rollout.GetPercent() != 10 || rollout.GetPath() != b.path("bin/next") {
		t.Errorf("the rollout is %v", rollout)
	}
	// New pods get either binary, so pods on both are up to date.
	b.node.run("a", "one", b.definition("crun"))
	b.node.run("b", "two", b.definition("crun").WithCandidate())
	pods, err := b.ListPods(t.Context(), &adminv1.ListPodsRequest{Handler: "crun"})
	if err != nil || len(pods.GetPods()) != 2 || pods.GetPods()[0].GetPin().GetOutdated() || pods.GetPods()[1].GetPin().GetOutdated() {
		t.Errorf("%v, %v", pods, err)
	}
	promoted, err := b.Promote(t.Context(), &adminv1.PromoteRequest{Name: "crun"})
	if err != nil || promoted.GetHandler().GetRollout().GetState() != "promoted" || promoted.GetHandler().GetPath() != b.path("bin/next") {
		t.Errorf("%v, %v", promoted, err)
	}
	aborted, err := b.Abort(t.Context(), &adminv1.AbortRequest{Name: "crun", Reason: "loses logs"})
	if err != nil || aborted.GetHandler().GetRollout().GetState() != "aborted" || aborted.GetHandler().GetRollout().GetReason() != "loses logs" ||
		aborted.GetHandler().GetPath() != b.path("bin/crun") {
		t.Errorf("%v, %v", aborted, err)
	}
	pods, err = b.ListPods(t.Context(), &adminv1.ListPodsRequest{Handler: "crun"})
	if err != nil || len(pods.GetPods()) != 2 || !pods.GetPods()[1].GetPin().GetOutdated() {
		t.Errorf("%v, %v", pods, err)
	}
	_, err = b.Abort(t.Context(), &adminv1.AbortRequest{Name: "crun", Reason: strings.Repeat("x", 1000)})
	if e := b.failure(err); e.Code != codes.InvalidArgument {
		t.Errorf("got %v: %s", e.Code, e.Text)
	}
}

// The status of the daemon reports a rollout whose candidate cannot run.
func TestStatusNamesANextBinaryThatIsNotTried(t *testing.T) {
	b := newBed(t)
	b.write("bin/next", "#!/bin/sh\n", 0o755)
	b.node.breaks(b.path("bin/next"), true)
	test.Must(t, test.Err(b.RegisterHandler(t.Context(), b.crun(
		&adminv1.Setting{Key: "candidate.runtime_path", Value: `"` + b.path("bin/next") + `"`}, &adminv1.Setting{Key: "candidate.percent", Value: "10"}))))
	s, err := b.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || len(s.GetDegraded()) != 1 || !strings.HasPrefix(s.GetDegraded()[0], "rollout of "+b.path("bin/next")+" under handler crun is stopped: ") {
		t.Errorf("%v, %v", s, err)
	}
}
