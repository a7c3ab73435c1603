package remote

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func learn(t *testing.T, k *known, pods map[string][]string) {
	t.Helper()
	var ps runtimeapi.ListPodSandboxResponse
	var cs runtimeapi.ListContainersResponse
	for p, containers := range pods {
		ps.Items = append(ps.Items, &runtimeapi.PodSandbox{Id: p, RuntimeHandler: "runc"})
		for _, c := range containers {
			cs.Containers = append(cs.Containers, &runtimeapi.Container{Id: c, PodSandboxId: p})
		}
	}
	k.take(&k.sandboxes, encodedHere(t, &ps), k.mark(), time.Now())
	k.take(&k.containers, encodedHere(t, &cs), k.mark(), time.Now())
}

// sketch is "pod:state[container:state …] …".
func sketch(t *testing.T, k *known) map[string]string {
	t.Helper()
	s := k.state()
	all := map[string]string{}
	for id, p := range s.sandboxes {
		all[id] = p.GetState().String()
	}
	for id, c := range s.containers {
		all[c.GetPodSandboxId()+"/"+id] = c.GetState().String()
	}
	return all
}

func TestWhatCallsDidIsKnown(t *testing.T) {
	const ready, notReady = "SANDBOX_READY", "SANDBOX_NOTREADY"
	const made, running, exited = "CONTAINER_CREATED", "CONTAINER_RUNNING", "CONTAINER_EXITED"
	pod := func(id string) change {
		return change{kind: madeSandbox, sandbox: &runtimeapi.PodSandbox{Id: id}}
	}
	container := func(id, pod string) change {
		return change{kind: madeContainer, container: &runtimeapi.Container{Id: id, PodSandboxId: pod}}
	}
	for name, c := range map[string]struct {
		changes []change
		want    map[string]string
	}{
		"nothing":           {nil, map[string]string{"p": ready, "p/c": made}},
		"started":           {[]change{{kind: startedContainer, id: "c"}}, map[string]string{"p": ready, "p/c": running}},
		"ended":             {[]change{{kind: startedContainer, id: "c"}, {kind: endedContainer, id: "c"}}, map[string]string{"p": ready, "p/c": exited}},
		"removed":           {[]change{{kind: removedContainer, id: "c"}}, map[string]string{"p": ready}},
		"pod stopped":       {[]change{{kind: stoppedSandbox, id: "p"}}, map[string]string{"p": notReady, "p/c": exited}},
		"pod removed":       {[]change{{kind: removedSandbox, id: "p"}}, map[string]string{}},
		"new pod":           {[]change{pod("q"), container("d", "q")}, map[string]string{"p": ready, "p/c": made, "q": ready, "q/d": made}},
		"new, and gone":     {[]change{pod("q"), container("d", "q"), {kind: removedSandbox, id: "q"}}, map[string]string{"p": ready, "p/c": made}},
		"without a sandbox": {[]change{container("d", "q")}, map[string]string{"p": ready, "p/c": made}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &known{}
			learn(t, k, map[string][]string{"p": {"c"}})
			path := filepath.Join(t.TempDir(), "x", "daemon.state")
			l := openedHere(t, path)
			l.known = k
			for _, change := range c.changes {
				k.note(change)
			}
			test.Must(t, l.write())
			check := func(k *known) {
				t.Helper()
				got := sketch(t, k)
				if len(got) != len(c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
				for key, value := range c.want {
					test.Equal(t, key, got[key], value)
				}
			}
			check(k)
			t.Run("after a kill", func(t *testing.T) {
				check(openedHere(t, path).known)
			})
		})
	}
}

func TestListsReplaceChanges(t *testing.T) {
	k := &known{}
	learn(t, k, map[string][]string{"p": {"c"}})
	before := k.mark()
	k.note(change{kind: removedSandbox, id: "p"})
	// A list that was asked for before the removal has the pod, and must not
	// bring it back.
	k.take(&k.sandboxes, encodedHere(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p"}}}), before, time.Now())
	if got := sketch(t, k); len(got) != 0 {
		t.Errorf("a removed pod came back: %v", got)
	}
	learn(t, k, map[string][]string{"q": {"d"}})
	if got := sketch(t, k); len(got) != 2 {
		t.Errorf("new lists gave %v", got)
	}
	if len(k.changes) != 0 {
		t.Errorf("%d changes were kept for nothing", len(k.changes))
	}
	// A slow list that was asked for earlier changes nothing any more.
	k.note(change{kind: startedContainer, id: "d"})
	learn(t, k, map[string][]string{"q": {"d"}, "r": nil})
	k.take(&k.sandboxes, nil, mark{}, time.Now())
	if got := sketch(t, k); len(got) != 3 {
		t.Errorf("a late list replaced a newer one: %v", got)
	}
}

func TestAListThatWasOvertakenIsNotTaken(t *testing.T) {
	k := &known{}
	learn(t, k, map[string][]string{"p": nil})
	slow, fast := k.mark(), k.mark() // nothing was done between the two
	if !k.take(&k.sandboxes, encodedHere(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p"}, {Id: "q"}}}), fast, time.Now()) {
		t.Error("a new pod is no news")
	}
	if k.take(&k.sandboxes, encodedHere(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p"}}}), slow, time.Now()) {
		t.Error("an overtaken list is news")
	}
	if got := sketch(t, k); len(got) != 2 {
		t.Errorf("an overtaken list was taken: %v", got)
	}
}

func TestAPodThatSomebodyElseRemovedIsForgotten(t *testing.T) {
	k := &known{}
	learn(t, k, map[string][]string{"p": nil})
	k.note(change{kind: madeSandbox, sandbox: &runtimeapi.PodSandbox{Id: "q"}})
	k.note(change{kind: madeContainer, container: &runtimeapi.Container{Id: "c", PodSandboxId: "q"}})
	only := encodedHere(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p", RuntimeHandler: "runc"}}})
	k.take(&k.sandboxes, only, k.mark(), time.Now())
	if got := sketch(t, k); len(got) != 1 || got["p"] == "" {
		t.Errorf("known is %v", got)
	}
	if !k.take(&k.containers, nil, k.mark(), time.Now()) {
		t.Error("that a change is in no list is no news")
	}
}

// A daemon that keeps containers and labels in maps lists them in another order each time: that is nothing new.
func TestTheSameInAnotherOrderIsKnown(t *testing.T) {
	k := &known{}
	l := &runtimeapi.ListContainersResponse{}
	for i := range 6 {
		l.Containers = append(l.Containers, &runtimeapi.Container{Id: fmt.Sprint("c", i), PodSandboxId: "p", Labels: map[string]string{"a": "b", "c": "d", "e": fmt.Sprint(i)}})
	}
	if !k.take(&k.containers, encodedHere(t, l), k.mark(), time.Now()) {
		t.Fatal("the first list is nothing new")
	}
	l.Containers[0], l.Containers[5] = l.Containers[5], l.Containers[0]
	if before := k.state(); k.take(&k.containers, encodedHere(t, l), k.mark(), time.Now()) || k.state() != before {
		t.Error("a list in another order is something new")
	}
	l.Containers[3].State = runtimeapi.ContainerState_CONTAINER_EXITED
	if !k.take(&k.containers, encodedHere(t, l), k.mark(), time.Now()) {
		t.Error("a container that has exited is nothing new")
	}
}

func TestDamagedImagesStopNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.state")
	for _, damaged := range []string{`"images": "/w=="`, `"filesystems": "CgU="`} {
		content := `{"format": 1, "record": {"endpoint": "/x.sock", "handlers": [{"Name": "a"}]}, "sandboxes": "CgMKAXA=", ` + damaged + `}`
		test.Must(t, os.WriteFile(path, []byte(content), 0o600))
		s, damage, err := openState(path)
		if err != nil || damage == nil || !strings.Contains(damage.Error(), path) {
			t.Errorf("%q is read: %v, %v", damaged, damage, err)
		}
		// What is sound stays.
		if got := sketch(t, s.known); len(got) != 1 || s.record == nil || len(s.record.Handlers) != 1 {
			t.Errorf("%q: kept are %v and %v", damaged, got, s.record)
		}
	}
}

// A list that was asked for before a removal must not bring the image back.
func TestImagesAreNotTakenFromAListThatWasOvertaken(t *testing.T) {
	s := &lastKnown{}
	one := encodedHere(t, &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{Id: "one"}}})
	before := s.mark()
	if s.removed("one") || s.take(one, before) {
		t.Error("nothing has changed, and is to be written")
	}
	if f, known := s.last(); known {
		t.Errorf("known: %q", f)
	}
	if !s.take(one, s.mark()) {
		t.Error("a list is not to be written")
	}
	if f, known := s.last(); !known || len(f) == 0 {
		t.Errorf("known: %q, %v", f, known)
	}
}

func encodedHere(t testing.TB, m proto.Message) []byte {
	t.Helper()
	return test.Value(proto.MarshalOptions{Deterministic: true}.Marshal(m))(t)
}

// openedHere is a state file without damage.
func openedHere(t *testing.T, path string) *stateFile {
	t.Helper()
	s, damage, err := openState(path)
	if err != nil || damage != nil {
		t.Fatal(damage, err)
	}
	return s
}
