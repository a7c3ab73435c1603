package forwarding

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// named returns a call of RuntimeService or ImageService in the newer CRI, by its name.
func (n *node) named(name string) protoreflect.MethodDescriptor {
	for _, service := range []string{"RuntimeService", "ImageService"} {
		if m := n.two.method("/runtime.v1." + service + "/" + name); m != nil {
			return m
		}
	}
	return nil
}

// at is the message at the end of a path of field names; of a list it takes the first item.
func at(m protoreflect.Message, names ...protoreflect.Name) protoreflect.Message {
	for _, name := range names {
		f := m.Descriptor().Fields().ByName(name)
		if f.IsList() {
			if m.Get(f).List().Len() == 0 {
				return m.Get(f).List().NewElement().Message()
			}
			m = m.Get(f).List().Get(0).Message()
			continue
		}
		m = m.Get(f).Message()
	}
	return m
}

func (n *node) testNewerStatus(t *testing.T) {
	m := n.named("Status")
	resp, err := n.call(bounded(t), m, (filling{"client", ""}).full(m.Input()))
	testbed.Must(t, err)
	// These peers answer a request that has newer_text with a value in each field.
	for _, names := range [][]protoreflect.Name{{}, {"status"}, {"status", "conditions"}, {"features"}} {
		if got := get(at(resp, names...), "newer_text"); !strings.HasPrefix(got, "one.") {
			t.Errorf("newer_text of %v is %q, want that of peer one", names, got)
		}
	}
	if n.one.last("Status") == nil || n.two.last("Status") == nil {
		t.Error("not every peer was called")
	}
	for _, p := range []*peer{n.one, n.two} {
		p.answer("Status", p.basically)
	}
	resp, err = n.call(bounded(t), m, dynamicpb.NewMessage(m.Input()))
	testbed.Must(t, err)
	handlers := resp.Get(resp.Descriptor().Fields().ByName("runtime_handlers")).List()
	for i := range handlers.Len() {
		h := handlers.Get(i).Message()
		want := map[string]string{"": "one", "one": "one", "two": "two", "runc": ""}[get(h, "name")]
		if get(h, "newer_text") != want || get(at(h, "features"), "newer_text") != want {
			t.Errorf("handler %v, want newer_text %q", h.Interface(), want)
		}
	}
	if handlers.Len() != 4 {
		t.Errorf("there are %d handlers, want 4", handlers.Len())
	}
}

func (n *node) testNewerSettings(t *testing.T) {
	m := n.named("UpdateRuntimeConfig")
	sent := (filling{"client", ""}).full(m.Input())
	cidr := at(sent, "runtime_config", "network_config")
	set(cidr, map[protoreflect.Name]string{"pod_cidr": "10.99.0.0/24"})
	if _, err := n.call(bounded(t), m, sent); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*peer{n.one, n.two} {
		same(t, "the request to "+p.name+" is", p.last("UpdateRuntimeConfig"), sent)
	}
}

// A list of images without a handler merges those of all stores, in unary and streamed form.
func (n *node) testNewerImages(t *testing.T) {
	for _, name := range []string{"ListImages", "StreamImages", "ImageFsInfo"} {
		m := n.named(name)
		sent := dynamicpb.NewMessage(m.Input())
		set(sent, map[protoreflect.Name]string{"newer_text": "client"})
		got, err := n.call(bounded(t), m, sent)
		testbed.Must(t, err)
		seen := map[string]bool{}
		items := got.Get(got.Descriptor().Fields().ByNumber(1)).List()
		for i := range items.Len() {
			text := get(items.Get(i).Message(), "newer_text")
			seen[strings.SplitN(text, ".", 2)[0]] = true
		}
		if !seen["one"] || !seen["two"] || get(got, "newer_text") == "" {
			t.Errorf("%s answers %v, want items of both peers", name, got)
		}
	}
}

func (n *node) testNewerEvents(t *testing.T) {
	m := n.named("GetContainerEvents")
	begin := make(chan struct{})
	event := n.two.filling().full(m.Output())
	n.two.answer("GetContainerEvents", func(c *call) error {
		select {
		case <-begin:
		case <-c.ctx().Done():
			return c.ctx().Err()
		}
		if err := c.SendMsg(event); err != nil {
			return err
		}
		<-c.ctx().Done()
		return c.ctx().Err()
	})
	quiet := func(c *call) error { <-c.ctx().Done(); return c.ctx().Err() }
	n.one.answer("GetContainerEvents", quiet)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	stream, err := n.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path(m))
	testbed.Must(t, err)
	sent := (filling{"client", ""}).full(m.Input())
	testbed.Must(t, errors.Join(stream.SendMsg(sent), stream.CloseSend()))
	close(begin)
	got := dynamicpb.NewMessage(m.Output())
	testbed.Must(t, stream.RecvMsg(got))
	same(t, "the event at the client is", got, (filling{"two", "two"}).full(m.Output()))
	same(t, "the request to the daemon is", n.two.last("GetContainerEvents"), sent)
}

// newerMessage is a request of a newer call with an ID, and with another ID in an inner message.
func (n *node) newerMessage(id, inner string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(n.two.method("/runtime.v1.NewerService/NewerCall").Input())
	set(m, map[protoreflect.Name]string{"container_id": id, "said": "hello"})
	if inner != "" {
		set(m.Mutable(m.Descriptor().Fields().ByName("inner")).Message(), map[protoreflect.Name]string{"container_id": inner})
	}
	return m
}

func (n *node) testNewerCalls(t *testing.T) {
	own := n.Client.RunSandbox(t, testbed.PodSpec{Handler: "runc"})
	for _, p := range []*peer{n.one, n.two} {
		for _, name := range []string{"NewerCall", "NewerStream", "NewerTalk"} {
			p.answer(name, func(c *call) error {
				for req := c.req; ; {
					for range map[string]int{"NewerCall": 1, "NewerStream": 3, "NewerTalk": 1}[name] {
						resp := proto.CloneOf(req)
						set(resp, map[protoreflect.Name]string{"said": p.name + " heard " + get(req, "said")})
						if err := c.SendMsg(resp); err != nil {
							return err
						}
					}
					req = dynamicpb.NewMessage(c.method.Input())
					if err := c.RecvMsg(req); errors.Is(err, io.EOF) {
						return nil
					} else if err != nil {
						return err
					}
				}
			})
		}
	}
	known := n.two.pods[id('5', "two", 1)]
	for name, c := range map[string]struct {
		id, inner string
		answers   string
	}{
		"ID of a container": {known, "", "two"}, "prefix of the ID": {known[:12], "", "two"},
		"ID of a sandbox": {id('5', "two", 1), "", "two"}, "ID in an inner message": {"", known, "two"}, "no ID": {"", "", "one"},
		"ID of a pod of berth itself": {own.ID, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"/runtime.v1.RuntimeService/NewerCall", "/runtime.v1.RuntimeService/NewerStream", "/runtime.v1.NewerService/NewerCall"} {
				req := n.newerMessage(c.id, c.inner)
				got, err := n.call(bounded(t), n.two.method(method), req)
				if c.answers == "" {
					if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "runc") {
						t.Errorf("%s: %v, want unimplemented by runc", method, err)
					}
					continue
				}
				testbed.Must(t, err)
				if said := get(got, "said"); said != c.answers+" heard hello" || get(got, "container_id") != c.id {
					t.Errorf("%s answers %v, want an answer of %s", method, got, c.answers)
				}
			}
		})
	}
	talk := n.two.method("/runtime.v1.RuntimeService/NewerTalk")
	stream, err := n.conn.NewStream(bounded(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, path(talk))
	testbed.Must(t, err)
	for range 3 {
		got := dynamicpb.NewMessage(talk.Output())
		if err := errors.Join(stream.SendMsg(n.newerMessage(known, "")), stream.RecvMsg(got)); err != nil || get(got, "said") != "two heard hello" {
			t.Errorf("NewerTalk answers %v, %v, want an answer of two", got, err)
		}
	}
	testbed.Check(t, stream.CloseSend())
	if err := stream.RecvMsg(dynamicpb.NewMessage(talk.Output())); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	// A call that is not of the CRI is not forwarded.
	if err := n.conn.Invoke(bounded(t), "/containerd.services.images.v1.Images/List", &runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	own.Remove(t)
}
