package engine

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Kubelets ask for both lists every second, and most often nothing has changed
// since. So what is sent of a sandbox or container is kept encoded, for the state
// that it has; all else in it is from when it was made.

// encodedItem is an item of a list as it is sent, with the tag of its field.
type encodedItem struct {
	state int32
	bytes []byte
}

// itemsField is the field of the items in both lists.
const itemsField = 1

// encodeItem encodes an item whose state is the one given.
func encodeItem(state int32, item proto.Message) (*encodedItem, error) {
	content, err := proto.Marshal(item)
	if err != nil {
		return nil, err
	}
	// Only as large as it has to be: it stays.
	head := protowire.SizeTag(itemsField) + protowire.SizeVarint(uint64(len(content)))
	b := protowire.AppendTag(make([]byte, 0, head+len(content)), itemsField, protowire.BytesType)
	return &encodedItem{state, protowire.AppendBytes(b, content)}, nil
}

func (s *sandbox) encoded(state runtimeapi.PodSandboxState) ([]byte, error) {
	if e := s.listed.Load(); e != nil && e.state == int32(state) {
		return e.bytes, nil
	}
	e, err := encodeItem(int32(state), s.itemIn(state))
	if err != nil {
		return nil, fmt.Errorf("list sandbox %s: %w", s.ID(), err)
	}
	s.listed.Store(e)
	return e.bytes, nil
}

func (c *container) encoded(state runtimeapi.ContainerState) ([]byte, error) {
	if e := c.listed.Load(); e != nil && e.state == int32(state) {
		return e.bytes, nil
	}
	e, err := encodeItem(int32(state), c.itemIn(state))
	if err != nil {
		return nil, fmt.Errorf("list container %s: %w", c.ID(), err)
	}
	c.listed.Store(e)
	return e.bytes, nil
}

// EncodedSandboxes is the answer of ListPodSandbox as it is sent.
func (b *sandboxViews) EncodedSandboxes(f *runtimeapi.PodSandboxFilter) ([]byte, error) {
	return encodedList(b.objects.allSandboxes(), func(s *sandbox) ([]byte, error) {
		state := s.state()
		if !s.matchesIn(state, f) {
			return nil, nil
		}
		return s.encoded(state)
	})
}

// EncodedContainers is the answer of ListContainers as it is sent.
func (b *containerViews) EncodedContainers(f *runtimeapi.ContainerFilter) ([]byte, error) {
	return encodedList(b.objects.allContainers(), func(c *container) ([]byte, error) {
		state := c.state()
		if !c.matchesIn(state, f) {
			return nil, nil
		}
		return c.encoded(state)
	})
}

// encodedList is a list of items. Those that are not in it are encoded as nothing.
func encodedList[O any](all []O, encoded func(O) ([]byte, error)) ([]byte, error) {
	items := make([][]byte, 0, len(all))
	for _, o := range all {
		item, err := encoded(o)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return slices.Concat(items...), nil
}
