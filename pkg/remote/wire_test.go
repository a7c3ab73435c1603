package remote

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/wire"
)

func encoded(t testing.TB, m proto.Message) wire.Frame {
	t.Helper()
	return test.Value(proto.MarshalOptions{Deterministic: true}.Marshal(m))(t)
}

func list(n int) *runtimeapi.ListContainersResponse {
	l := &runtimeapi.ListContainersResponse{}
	for i := range n {
		l.Containers = append(l.Containers, &runtimeapi.Container{
			Id: fmt.Sprint("c", i), PodSandboxId: fmt.Sprint("s", i), Image: &runtimeapi.ImageSpec{Image: "i", RuntimeHandler: "runc"},
			Labels: map[string]string{"l": strings.Repeat("x", i)},
		})
	}
	return l
}

// newer adds a field to m that this CRI does not have.
func newer(m proto.Message) proto.Message {
	m.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 2, 'h', 'i'}) // field 1023
	return m
}

func TestCarriedMessageIsWhatCame(t *testing.T) {
	f := encoded(t, newer(list(3)))
	carried := &runtimeapi.ListContainersResponse{}
	f.Carry(carried)
	if len(carried.GetContainers()) != 0 {
		t.Error("a carried message was decoded")
	}
	if got := encoded(t, carried); !bytes.Equal(got, f) {
		t.Errorf("got %x, want %x", got, f)
	}
}

// A request with unknown fields may have a filter that only the daemon knows, so
// its list may be incomplete.
func TestListsThatAreWhole(t *testing.T) {
	newest := &runtimeapi.ListPodSandboxRequest{}
	newer(newest)
	for name, c := range map[string]struct {
		req  *runtimeapi.ListPodSandboxRequest
		want bool
	}{
		"empty": {&runtimeapi.ListPodSandboxRequest{}, true}, "empty filter": {&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{}}, true},
		"filter": {&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: "a"}}, false}, "newer": {newest, false},
	} {
		test.Equal(t, name, wantsAll(c.req, c.req.GetFilter()), c.want)
	}
}

func TestValidFrames(t *testing.T) {
	for text, want := range map[string]bool{"": true, "\x0a\x01a": true, "\x0a\x05a": false, "hello": false, "\x00": false} {
		if wire.Frame(text).Valid() != want {
			t.Errorf("%q: valid %v", text, !want)
		}
	}
}

func TestChunks(t *testing.T) {
	f := encoded(t, list(40))
	for _, limit := range []int{1, 100, 300, 1 << 20} {
		var all wire.Frame
		pieces := f.Chunks(limit)
		for _, piece := range pieces {
			all = append(all, piece...)
			var l runtimeapi.ListContainersResponse
			if err := proto.Unmarshal(piece, &l); err != nil || (len(piece) > limit && len(l.GetContainers()) > 1) {
				t.Errorf("limit %d: a chunk of %d bytes with %d items, %v", limit, len(piece), len(l.GetContainers()), err)
			}
		}
		if !bytes.Equal(all, f) || (limit == 1 && len(pieces) != 40) || (limit == 1<<20 && len(pieces) != 1) {
			t.Errorf("limit %d: %d chunks of %d bytes instead of %d", limit, len(pieces), len(all), len(f))
		}
	}
	if got := (wire.Frame{}).Chunks(10); len(got) != 0 {
		t.Errorf("the chunks of an empty list are %v", got)
	}
}

func TestRenamed(t *testing.T) {
	l := list(3)
	l.Containers[1].Image = nil
	newer(l.Containers[2])
	f := encoded(t, l)
	name := func(n string) string { return map[string]string{"runc": "legacy-with-a-longer-name"}[n] }
	got := wire.Renamed(f, containerNames, name)
	for _, i := range []int{0, 2} {
		l.Containers[i].Image.RuntimeHandler = "legacy-with-a-longer-name"
	}
	var read runtimeapi.ListContainersResponse
	if err := proto.Unmarshal(got, &read); err != nil || !proto.Equal(&read, l) {
		t.Errorf("renamed %v, %v", &read, err)
	}
	if same := wire.Renamed(f, containerNames, func(n string) string { return n }); &same[0] != &f[0] {
		t.Error("a list without changes was copied")
	}
}

func FuzzWire(f *testing.F) {
	f.Add([]byte(encoded(f, list(3))))
	f.Add([]byte("\x0a\x01a\x0a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if !wire.Frame(b).Valid() {
			return
		}
		if got := bytes.Join(asBytes(wire.Frame(b).Chunks(8)), nil); !bytes.Equal(got, b) {
			t.Errorf("chunks of %x are %x", b, got)
		}
		if got := wire.Renamed(b, containerNames, func(n string) string { return n + "x" }); !wire.Frame(got).Valid() {
			t.Errorf("%x was renamed to %x", b, got)
		}
	})
}

func asBytes(frames []wire.Frame) [][]byte {
	var all [][]byte
	for _, f := range frames {
		all = append(all, f)
	}
	return all
}

// These paths were found by hand. A newer CRI may add paths, but none of these may be
// missing.
func TestPathsToHandlersOfImages(t *testing.T) {
	for name, c := range map[string]struct {
		message proto.Message
		want    [][]protowire.Number
	}{
		"a list of images":     {&runtimeapi.ListImagesResponse{}, [][]protowire.Number{{1, 7, 19}}},
		"an image's status":    {&runtimeapi.ImageStatusResponse{}, [][]protowire.Number{{1, 7, 19}}},
		"a list of containers": {&runtimeapi.ListContainersResponse{}, [][]protowire.Number{{1, 4, 19}}},
		"a container's status": {&runtimeapi.ContainerStatusResponse{}, [][]protowire.Number{{1, 8, 19}, {1, 14, 9, 19}}},
		"a sandbox's status":   {&runtimeapi.PodSandboxStatusResponse{}, [][]protowire.Number{{3, 8, 19}, {3, 14, 9, 19}}},
		"an event":             {&runtimeapi.ContainerEventResponse{}, [][]protowire.Number{{5, 8, 19}, {5, 14, 9, 19}}},
		"statistics have none": {&runtimeapi.ListContainerStatsResponse{}, nil},
	} {
		if got := wire.ImageHandlers(c.message); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if wire.ItemsField != 1 || wire.IDField != 1 || wire.SandboxHandlerField != 7 || wire.ContainerSandboxField != 2 {
		t.Errorf("the field numbers are: items %d, id %d, handler %d, sandbox %d", wire.ItemsField, wire.IDField, wire.SandboxHandlerField, wire.ContainerSandboxField)
	}
}

// All lists have the same field numbers for items and their ids.
func TestItemsAreWhereTheyAreLookedFor(t *testing.T) {
	for _, list := range []proto.Message{
		&runtimeapi.ListPodSandboxResponse{}, &runtimeapi.ListContainersResponse{}, &runtimeapi.ListImagesResponse{},
	} {
		items := list.ProtoReflect().Descriptor().Fields().ByNumber(wire.ItemsField)
		if items == nil || !items.IsList() || items.Message().Fields().ByName("id").Number() != wire.IDField {
			t.Errorf("%s has another field number of its items or their ids", list.ProtoReflect().Descriptor().Name())
		}
	}
}
