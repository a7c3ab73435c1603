package forwarding

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/berth-cri/berth/integration/testbed"
)

// way is how berth selects the backends that get a call.
type way string

const (
	byHandler   way = "the handler that it names"
	bySandbox   way = "the owner of its sandbox"
	byContainer way = "the owner of its container"
	byImage     way = "the store of its image's handler"
	toAll       way = "all backends"
	toDefault   way = "the default handler's backend"
	nowhere     way = "none: berth answers"
	apart       way = "tested separately"
)

// ways has every call of the CRI. When the CRI gets a new call, decide how berth selects its
// backends, and add the call here.
var ways = map[protoreflect.Name]way{
	"RunPodSandbox": byHandler, "RestorePod": byHandler,

	"StopPodSandbox": bySandbox, "RemovePodSandbox": bySandbox, "PodSandboxStatus": bySandbox, "CreateContainer": bySandbox,
	"PortForward": bySandbox, "PodSandboxStats": bySandbox, "UpdatePodSandboxResources": bySandbox, "CheckpointPod": bySandbox,

	"StartContainer": byContainer, "StopContainer": byContainer, "RemoveContainer": byContainer, "ContainerStatus": byContainer,
	"UpdateContainerResources": byContainer, "ReopenContainerLog": byContainer, "ExecSync": byContainer, "Exec": byContainer,
	"Attach": byContainer, "ContainerStats": byContainer, "CheckpointContainer": byContainer,

	"ListPodSandbox": toAll, "StreamPodSandboxes": toAll, "ListContainers": toAll, "StreamContainers": toAll,
	"ListContainerStats": toAll, "StreamContainerStats": toAll, "ListPodSandboxStats": toAll, "StreamPodSandboxStats": toAll,
	"ListMetricDescriptors": toAll, "ListPodSandboxMetrics": toAll, "StreamPodSandboxMetrics": toAll,

	"Version": nowhere, "RuntimeConfig": toDefault,

	"ListImages": byImage, "StreamImages": byImage, "ImageStatus": byImage, "PullImage": byImage, "RemoveImage": byImage,

	"Status": apart, "UpdateRuntimeConfig": apart, "GetContainerEvents": apart, "ImageFsInfo": apart,
}

func TestItIsDecidedWhereEveryCallGoes(t *testing.T) {
	have := map[protoreflect.Name]bool{}
	for _, m := range thisCRI().methods() {
		have[m.Name()] = true
		if ways[m.Name()] == "" {
			t.Errorf("%s is not in the table ways", m.Name())
		}
	}
	for name := range ways {
		if !have[name] {
			t.Errorf("%s is not a call of the CRI", name)
		}
	}
}

// A daemon and a client that are newer than berth lose nothing: berth forwards fields and values
// that it does not know, in every call and at every level of a message.
func TestNewerDaemonsAndClients(t *testing.T) {
	newest := newerCRI(t)
	methods := thisCRI().methods()
	n := startNode(t, startPeer(t, newest, "one", 1), startPeer(t, newest, "two", len(methods)), "")
	for i, m := range methods {
		m = newest.method(path(m))
		name := string(m.Name())
		if way := ways[m.Name()]; way == apart || way == nowhere {
			continue
		}
		t.Run(name, func(t *testing.T) {
			// Each call has its own sandbox, because RemovePodSandbox removes one.
			ids := map[protoreflect.Name]string{"pod_sandbox_id": id('5', "two", i), "container_id": id('c', "two", i)}
			sent, wanted := (filling{"client", "two"}).full(m.Input()), (filling{"client", "runc"}).full(m.Input())
			asked, others := []*peer{n.two}, []*peer{n.one}
			switch ways[m.Name()] {
			case bySandbox, byContainer:
				set(sent, ids)
				set(wanted, ids)
			case toAll:
				asked, others = []*peer{n.one, n.two}, nil
			case toDefault:
				asked, others = others, asked
			}
			got, err := n.call(bounded(t), m, sent)
			testbed.Must(t, err)
			for _, p := range asked {
				if of := p.last(name); of == nil {
					if of = p.last(twin[name]); of == nil {
						t.Errorf("peer %s was not called", p.name)
					} else {
						same(t, "the request to "+p.name+" is", as(t, of, m.Input()), wanted)
					}
				} else {
					same(t, "the request to "+p.name+" is", of, wanted)
				}
			}
			for _, p := range others {
				if p.last(name) != nil {
					t.Errorf("peer %s was called too", p.name)
				}
			}
			handler := "two"
			if ways[m.Name()] == toDefault {
				handler = "one"
			}
			answers := [2]*dynamicpb.Message{dynamicpb.NewMessage(m.Output()), dynamicpb.NewMessage(m.Output())}
			for at, p := range asked { // answers may be merged in either order
				if ways[m.Name()] == toAll {
					handler = p.name
				}
				part := (filling{p.name, handler}).full(m.Output())
				proto.Merge(answers[0], part)
				if at == 0 {
					answers[1] = part
				} else {
					proto.Merge(part, answers[1])
					answers[1] = part
				}
			}
			if name == "ListMetricDescriptors" {
				withoutOwn(got)
			}
			if !proto.Equal(got, answers[1]) {
				same(t, "the answer to the client is", got, answers[0])
			}
		})
	}
	t.Run("Status", n.testNewerStatus)
	t.Run("settings", n.testNewerSettings)
	t.Run("merged images", n.testNewerImages)
	t.Run("events", n.testNewerEvents)
	t.Run("calls", n.testNewerCalls)
}

// withoutOwn removes the descriptors of berth's own metrics.
func withoutOwn(m protoreflect.Message) {
	all := m.Mutable(m.Descriptor().Fields().ByName("descriptors")).List()
	kept := 0
	for i := range all.Len() {
		if get(all.Get(i).Message(), "newer_text") != "" {
			all.Set(kept, all.Get(i))
			kept++
		}
	}
	all.Truncate(kept)
}

// twin has, for each call that lists, its unary or streamed counterpart.
var twin = func() map[string]string {
	all := map[string]string{}
	for unary, stream := range listForms {
		all[unary], all[stream] = stream, unary
	}
	return all
}()

func same(t *testing.T, what string, got, want proto.Message) {
	t.Helper()
	if proto.Equal(got, want) {
		return
	}
	format := prototext.MarshalOptions{Multiline: true}
	t.Errorf("%s %s", what, difference(format.Format(got), format.Format(want)))
}

// difference shows both texts around the first place where they differ.
func difference(got, want string) string {
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	part := func(s string) string { return s[max(0, min(at, len(s))-200):min(len(s), at+300)] }
	return fmt.Sprintf("…%s…\nwant …%s…", part(got), part(want))
}
