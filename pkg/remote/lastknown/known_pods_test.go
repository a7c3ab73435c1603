package lastknown

import (
	"errors"
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

func learn(t *testing.T, k *Pods, pods map[string][]string) {
	t.Helper()
	var ps runtimeapi.ListPodSandboxResponse
	var cs runtimeapi.ListContainersResponse
	for p, containers := range pods {
		ps.Items = append(ps.Items, &runtimeapi.PodSandbox{Id: p, RuntimeHandler: "runc"})
		for _, c := range containers {
			cs.Containers = append(cs.Containers, &runtimeapi.Container{Id: c, PodSandboxId: p})
		}
	}
	k.Take(&k.Sandboxes, encoded(t, &ps), k.Mark(), time.Now())
	k.Take(&k.Containers, encoded(t, &cs), k.Mark(), time.Now())
}

// sketch returns the states of pods, by id, and of containers, by "pod/container".
func sketch(t *testing.T, k *Pods) map[string]string {
	t.Helper()
	s := k.State()
	all := map[string]string{}
	for id, p := range s.Sandboxes {
		all[id] = p.GetState().String()
	}
	for id, c := range s.Containers {
		all[c.GetPodSandboxId()+"/"+id] = c.GetState().String()
	}
	return all
}

func TestWhatCallsDidIsKnown(t *testing.T) {
	const ready, notReady = "SANDBOX_READY", "SANDBOX_NOTREADY"
	const made, running, exited = "CONTAINER_CREATED", "CONTAINER_RUNNING", "CONTAINER_EXITED"
	pod := func(id string) Change {
		return Change{Kind: CreatedSandbox, Sandbox: &runtimeapi.PodSandbox{Id: id}}
	}
	container := func(id, pod string) Change {
		return Change{Kind: CreatedContainer, Container: &runtimeapi.Container{Id: id, PodSandboxId: pod}}
	}
	for name, c := range map[string]struct {
		changes []Change
		want    map[string]string
	}{
		"no change":         {nil, map[string]string{"p": ready, "p/c": made}},
		"started":           {[]Change{{Kind: StartedContainer, ID: "c"}}, map[string]string{"p": ready, "p/c": running}},
		"exited":            {[]Change{{Kind: StartedContainer, ID: "c"}, {Kind: StoppedContainer, ID: "c"}}, map[string]string{"p": ready, "p/c": exited}},
		"removed":           {[]Change{{Kind: RemovedContainer, ID: "c"}}, map[string]string{"p": ready}},
		"pod stopped":       {[]Change{{Kind: StoppedSandbox, ID: "p"}}, map[string]string{"p": notReady, "p/c": exited}},
		"pod removed":       {[]Change{{Kind: RemovedSandbox, ID: "p"}}, map[string]string{}},
		"new pod":           {[]Change{pod("q"), container("d", "q")}, map[string]string{"p": ready, "p/c": made, "q": ready, "q/d": made}},
		"new pod removed":   {[]Change{pod("q"), container("d", "q"), {Kind: RemovedSandbox, ID: "q"}}, map[string]string{"p": ready, "p/c": made}},
		"without a sandbox": {[]Change{container("d", "q")}, map[string]string{"p": ready, "p/c": made}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &Pods{}
			learn(t, k, map[string][]string{"p": {"c"}})
			path := filepath.Join(t.TempDir(), "x", "daemon.state")
			l := opened(t, path)
			l.Known = k
			for _, change := range c.changes {
				k.Note(change)
			}
			test.Must(t, l.Write())
			check := func(k *Pods) {
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
				check(opened(t, path).Known)
			})
		})
	}
}

func TestListsReplaceChanges(t *testing.T) {
	k := &Pods{}
	learn(t, k, map[string][]string{"p": {"c"}})
	before := k.Mark()
	k.Note(Change{Kind: RemovedSandbox, ID: "p"})
	// A list that was requested before the removal contains the pod, and must
	// not bring it back.
	k.Take(&k.Sandboxes, encoded(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p"}}}), before, time.Now())
	if got := sketch(t, k); len(got) != 0 {
		t.Errorf("a removed pod came back: %v", got)
	}
	learn(t, k, map[string][]string{"q": {"d"}})
	if got := sketch(t, k); len(got) != 2 {
		t.Errorf("after new lists: %v", got)
	}
	if len(k.changes) != 0 {
		t.Errorf("%d changes are kept although the lists contain them", len(k.changes))
	}
	// A slow list that was requested earlier changes nothing.
	k.Note(Change{Kind: StartedContainer, ID: "d"})
	learn(t, k, map[string][]string{"q": {"d"}, "r": nil})
	k.Take(&k.Sandboxes, nil, Mark{}, time.Now())
	if got := sketch(t, k); len(got) != 3 {
		t.Errorf("a late list replaced a newer one: %v", got)
	}
}

func TestAListThatWasOvertakenIsNotTaken(t *testing.T) {
	k := &Pods{}
	learn(t, k, map[string][]string{"p": nil})
	slow, fast := k.Mark(), k.Mark() // without a change between the two
	if !k.Take(&k.Sandboxes, encoded(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p"}, {Id: "q"}}}), fast, time.Now()) {
		t.Error("Take returned false for a new pod")
	}
	if k.Take(&k.Sandboxes, encoded(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p"}}}), slow, time.Now()) {
		t.Error("Take returned true for an older list")
	}
	if got := sketch(t, k); len(got) != 2 {
		t.Errorf("an older list replaced a newer one: %v", got)
	}
}

func TestAPodThatSomebodyElseRemovedIsForgotten(t *testing.T) {
	k := &Pods{}
	learn(t, k, map[string][]string{"p": nil})
	k.Note(Change{Kind: CreatedSandbox, Sandbox: &runtimeapi.PodSandbox{Id: "q"}})
	k.Note(Change{Kind: CreatedContainer, Container: &runtimeapi.Container{Id: "c", PodSandboxId: "q"}})
	only := encoded(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "p", RuntimeHandler: "runc"}}})
	k.Take(&k.Sandboxes, only, k.Mark(), time.Now())
	if got := sketch(t, k); len(got) != 1 || got["p"] == "" {
		t.Errorf("the last known entries are %v", got)
	}
	if !k.Take(&k.Containers, nil, k.Mark(), time.Now()) {
		t.Error("Take returned false although a change is in no list")
	}
}

// A daemon may list the same containers and labels in another order each time. This is no change.
func TestTheSameInAnotherOrderIsKnown(t *testing.T) {
	k := &Pods{}
	l := &runtimeapi.ListContainersResponse{}
	for i := range 6 {
		l.Containers = append(l.Containers, &runtimeapi.Container{Id: fmt.Sprint("c", i), PodSandboxId: "p", Labels: map[string]string{"a": "b", "c": "d", "e": fmt.Sprint(i)}})
	}
	if !k.Take(&k.Containers, encoded(t, l), k.Mark(), time.Now()) {
		t.Fatal("the first list is not a change")
	}
	l.Containers[0], l.Containers[5] = l.Containers[5], l.Containers[0]
	if before := k.State(); k.Take(&k.Containers, encoded(t, l), k.Mark(), time.Now()) || k.State() != before {
		t.Error("another order of a list is a change")
	}
	l.Containers[3].State = runtimeapi.ContainerState_CONTAINER_EXITED
	if !k.Take(&k.Containers, encoded(t, l), k.Mark(), time.Now()) {
		t.Error("the exit of a container is not a change")
	}
}

func TestDamagedImagesStopNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.state")
	for _, damaged := range []string{`"images": "/w=="`, `"filesystems": "CgU="`} {
		content := `{"format": 1, "record": {"endpoint": "/x.sock", "handlers": [{"Name": "a"}]}, "sandboxes": "CgMKAXA=", ` + damaged + `}`
		test.Must(t, os.WriteFile(path, []byte(content), 0o600))
		s, damage, err := Open(path)
		if err != nil || damage == nil || !strings.Contains(damage.Error(), path) {
			t.Errorf("%q: damage %v, error %v", damaged, damage, err)
		}
		// The undamaged parts are kept.
		if got := sketch(t, s.Known); len(got) != 1 || s.record == nil || len(s.record.Handlers) != 1 {
			t.Errorf("%q: kept pods %v, record %v", damaged, got, s.record)
		}
	}
}

// A list that was requested before a removal must not bring the image back.
func TestImagesAreNotTakenFromAListThatWasOvertaken(t *testing.T) {
	s := &Images{}
	one := encoded(t, &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{Id: "one"}}})
	before := s.Mark()
	if s.Removed("one") || s.Take(one, before) {
		t.Error("the file must be written, but nothing has changed")
	}
	if f, known := s.Last(); known {
		t.Errorf("the images are known: %q", f)
	}
	if !s.Take(one, s.Mark()) {
		t.Error("Take returned false for the first list")
	}
	if f, known := s.Last(); !known || len(f) == 0 {
		t.Errorf("the images are %q, known %v", f, known)
	}
}

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	return test.Value(proto.MarshalOptions{Deterministic: true}.Marshal(m))(t)
}

// opened opens a state file, which must not be damaged.
func opened(t *testing.T, path string) *File {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	s, damage, err := Open(path)
	test.Must(t, errors.Join(damage, err))
	return s
}
