package remote

import (
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// progressIn reads "pod=step pod/container=step …".
func progressIn(t *testing.T, text string) progress {
	t.Helper()
	p := progress{}
	for i, field := range strings.Fields(text) {
		name, at, _ := strings.Cut(field, "=")
		sandbox, id, isContainer := strings.Cut(name, "/")
		if !isContainer {
			id = sandbox
		}
		s, known := map[string]step{"created": created, "started": started, "stopped": stopped, "deleted": deleted}[at]
		if !known {
			t.Fatal(field)
		}
		p[id] = subject{id: id, sandbox: sandbox, step: s, madeAt: int64(i)}
	}
	return p
}

func told(all []transition) string {
	var words []string
	for _, t := range all {
		word := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(t.to.String(), "CONTAINER_"), "_EVENT"))
		words = append(words, t.id+" "+word)
	}
	return strings.Join(words, ", ")
}

func TestMissedTransitions(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", "", ""},
		{"p=started p/c=started", "p=started p/c=started", ""},
		{"", "p=started p/c=created", "p created, p started, c created"},
		{"", "p=started p/c=stopped", "p created, p started, c created, c started, c stopped"},
		{"p=started p/c=started", "p=started p/c=stopped", "c stopped"},
		{"p=started p/c=started", "p=stopped p/c=stopped", "c stopped, p stopped"},
		{"p=started p/c=started", "", "c stopped, c deleted, p stopped, p deleted"},
		{"p=stopped p/c=stopped", "p=stopped", "c deleted"},
		{"p=started p/c=stopped", "p=started p/d=started", "d created, d started, c deleted"},
		{"p=deleted p/c=deleted", "", ""},
	} {
		if got := told(missed(progressIn(t, c.before), progressIn(t, c.after))); got != c.want {
			t.Errorf("from %q to %q: %s; want %s", c.before, c.after, got, c.want)
		}
	}
}

func TestHeardOnce(t *testing.T) {
	p := progressIn(t, "p=started p/c=created")
	for i, c := range []struct {
		id   string
		to   runtimeapi.ContainerEventType
		want bool
	}{
		{"c", runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, false},
		{"c", runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, true},
		{"c", runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, false},
		{"d", runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, false},
		{"d", runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, true},
		{"c", runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, true},
		{"c", runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, false},
		{"c", runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, false},
	} {
		if got := p.heard(c.id, "p", c.to, int64(i)); got != c.want {
			t.Errorf("%d: %s %s: %v", i, c.id, c.to, got)
		}
	}
	if got := told(missed(p, progressIn(t, "p=started"))); got != "d stopped, d deleted" {
		t.Errorf("after all: %s", got)
	}
}

func TestDeletedIsForgottenLater(t *testing.T) {
	p := progressIn(t, "p=started")
	p = renewed(p, progress{})
	if got := fmt.Sprint(len(p), p["p"].step == deleted); got != "1 true" {
		t.Error(got)
	}
	if p = renewed(p, progress{}); len(p) != 0 {
		t.Error("still there")
	}
}

// An event that is newer than this CRI says nothing of how far something has come.
func TestNewerEvents(t *testing.T) {
	to := &listener{ctx: t.Context(), heard: make(chan *runtimeapi.ContainerEventResponse, 10)}
	n := &names{}
	s := &subscription{events: &events{caller: &caller{}, names: n, lists: &lists{names: n, known: &known{}}}, to: to, seen: progressIn(t, "p=started p/c=created")}
	s.names.set([]Handler{{Name: "legacy", Remote: "runc"}})
	newest := runtimeapi.ContainerEventType(99)
	for _, kind := range []runtimeapi.ContainerEventType{newest, newest, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT} {
		e := &runtimeapi.ContainerEventResponse{
			ContainerId: "c", ContainerEventType: kind, PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: "p", RuntimeHandler: "runc"},
			ContainersStatuses: []*runtimeapi.ContainerStatus{{Image: &runtimeapi.ImageSpec{RuntimeHandler: "runc"}, Mounts: []*runtimeapi.Mount{{Image: &runtimeapi.ImageSpec{RuntimeHandler: "runc"}}}}},
		}
		if err := s.pass(encoded(t, newer(e))); err != nil {
			t.Fatal(err)
		}
		if len(to.heard) != 1 {
			t.Fatalf("%v was told %d times", kind, len(to.heard))
		}
		got := <-to.heard
		of := got.GetContainersStatuses()[0]
		if got.GetContainerEventType() != kind || len(got.ProtoReflect().GetUnknown()) == 0 || got.GetPodSandboxStatus().GetRuntimeHandler() != "legacy" ||
			of.GetImage().GetRuntimeHandler() != "legacy" || of.GetMounts()[0].GetImage().GetRuntimeHandler() != "legacy" {
			t.Errorf("told %v", got)
		}
	}
}
