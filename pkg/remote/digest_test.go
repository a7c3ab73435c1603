package remote

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func someContainers(n int) *runtimeapi.ListContainersResponse {
	l := &runtimeapi.ListContainersResponse{}
	for i := range n {
		l.Containers = append(l.Containers, &runtimeapi.Container{
			Id: fmt.Sprintf("%064d", i), PodSandboxId: fmt.Sprintf("%064d", i/2), Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprint("c", i)},
			Image: &runtimeapi.ImageSpec{Image: "example/one:1"}, ImageRef: "sha256:1", State: runtimeapi.ContainerState_CONTAINER_RUNNING, CreatedAt: int64(i),
			Labels:      map[string]string{"io.kubernetes.pod.name": fmt.Sprint("p", i), "io.kubernetes.pod.namespace": "n", "io.kubernetes.pod.uid": fmt.Sprint(i)},
			Annotations: map[string]string{"a": fmt.Sprint(i), "b": "x", "c": "y"},
		})
	}
	return l
}

func TestDigestOfTheSameInAnotherOrder(t *testing.T) {
	l := someContainers(40)
	want := containerLists.digester.sum(encoded(t, l))
	for range 50 {
		rand.Shuffle(len(l.Containers), func(i, j int) { l.Containers[i], l.Containers[j] = l.Containers[j], l.Containers[i] })
		// Maps are encoded in another order each time, too.
		if got := containerLists.digester.sum(encoded(t, l)); got != want {
			t.Fatal("the same containers in another order have another digest")
		}
	}
}

func TestDigestOfWhatDiffers(t *testing.T) {
	before := someContainers(4)
	want := containerLists.digester.sum(encoded(t, before))
	for name, change := range map[string]func(*runtimeapi.ListContainersResponse){
		"a state": func(l *runtimeapi.ListContainersResponse) {
			l.Containers[1].State = runtimeapi.ContainerState_CONTAINER_EXITED
		},
		"a default state": func(l *runtimeapi.ListContainersResponse) { l.Containers[1].State = 0 },
		"one less":        func(l *runtimeapi.ListContainersResponse) { l.Containers = l.Containers[:3] },
		"one twice":       func(l *runtimeapi.ListContainersResponse) { l.Containers = append(l.Containers, l.Containers[0]) },
		"one empty more": func(l *runtimeapi.ListContainersResponse) {
			l.Containers = append(l.Containers, &runtimeapi.Container{})
		},
		"a label":       func(l *runtimeapi.ListContainersResponse) { l.Containers[0].Labels["io.kubernetes.pod.uid"] = "9" },
		"another label": func(l *runtimeapi.ListContainersResponse) { l.Containers[0].Labels["x"] = "" },
		"labels swapped": func(l *runtimeapi.ListContainersResponse) {
			l.Containers[0].Labels, l.Containers[1].Labels = l.Containers[1].Labels, l.Containers[0].Labels
		},
		"maps swapped": func(l *runtimeapi.ListContainersResponse) {
			c := l.Containers[0]
			c.Labels, c.Annotations = c.Annotations, c.Labels
		},
		"an image": func(l *runtimeapi.ListContainersResponse) { l.Containers[2].Image.Image = "example/two:1" },
		"something newer": func(l *runtimeapi.ListContainersResponse) {
			l.Containers[2].ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
		},
		"newer of the list": func(l *runtimeapi.ListContainersResponse) { l.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) },
	} {
		after := proto.CloneOf(before)
		change(after)
		if containerLists.digester.sum(encoded(t, after)) == want {
			t.Errorf("%s makes no difference", name)
		}
	}
	// What is newer may be a list of its own, in which the order counts.
	ab := proto.CloneOf(before)
	ab.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1, 0xf8, 0x07, 2})
	ba := proto.CloneOf(before)
	ba.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 2, 0xf8, 0x07, 1})
	if containerLists.digester.sum(encoded(t, ab)) == containerLists.digester.sum(encoded(t, ba)) {
		t.Error("the order of what is newer makes no difference")
	}
	if containerLists.digester.sum(nil) == 0 {
		t.Error("an empty list has the digest of none")
	}
}

// A daemon that keeps containers in a map lists them in another order each time.
// Nobody has anything to do then, and clients see the list that they saw before.
func TestTheSameInAnotherOrderIsKnown(t *testing.T) {
	k := &known{}
	l := someContainers(6)
	first := encoded(t, l)
	if !k.take(&k.containers, first, k.mark(), time.Now()) {
		t.Fatal("the first list is nothing new")
	}
	l.Containers[0], l.Containers[5] = l.Containers[5], l.Containers[0]
	again := encoded(t, l)
	known, same := k.recall(&k.containers, containerLists.digester.sum(again))
	if !same || &known[0] != &first[0] {
		t.Error("a list in another order is not the one that is known")
	}
	if edition := k.edited(); k.take(&k.containers, again, k.mark(), time.Now()) || k.edited() != edition {
		t.Error("a list in another order is something new")
	}
	l.Containers[3].State = runtimeapi.ContainerState_CONTAINER_EXITED
	if _, same := k.recall(&k.containers, containerLists.digester.sum(encoded(t, l))); same {
		t.Error("a list with a container that has ended is the one that is known")
	}
}

func BenchmarkDigest(b *testing.B) {
	f, err := proto.Marshal(someContainers(250))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(f)))
	b.ReportAllocs()
	for b.Loop() {
		containerLists.digester.sum(f)
	}
}
