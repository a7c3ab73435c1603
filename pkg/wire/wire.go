// Package wire reads and changes encoded messages of the CRI without decoding them, which preserves
// fields that are newer than this build.
package wire

import (
	"bytes"
	"iter"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Numbers of fields in the CRI's messages, from their descriptors. All lists have their items in
// ItemsField; sandboxes, containers and images have their IDs in IDField.
var (
	ItemsField            = numberOf(&runtimeapi.ListPodSandboxResponse{}, "items")
	IDField               = numberOf(&runtimeapi.PodSandbox{}, "id")
	SandboxHandlerField   = numberOf(&runtimeapi.PodSandbox{}, "runtime_handler")
	ContainerSandboxField = numberOf(&runtimeapi.Container{}, "pod_sandbox_id")
	StatusField           = numberOf(&runtimeapi.PodSandboxStatusResponse{}, "status")
	StatusHandlerField    = numberOf(&runtimeapi.PodSandboxStatus{}, "runtime_handler")
)

// numberOf panics if the message lacks the field, which is a mistake in this package.
func numberOf(m proto.Message, field protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(field).Number()
}

// maxDepth bounds the search in message types, which may contain themselves.
const maxDepth = 8

// ImageHandlers returns the paths to the names of handlers in all images of a message.
func ImageHandlers(m proto.Message) [][]protowire.Number {
	image := (&runtimeapi.ImageSpec{}).ProtoReflect().Descriptor()
	end := numberOf(&runtimeapi.ImageSpec{}, "runtime_handler")
	var paths [][]protowire.Number
	var look func(in protoreflect.MessageDescriptor, at []protowire.Number)
	look = func(in protoreflect.MessageDescriptor, at []protowire.Number) {
		for i := range in.Fields().Len() {
			f := in.Fields().Get(i)
			to := append(slices.Clone(at), f.Number())
			switch {
			case f.Kind() != protoreflect.MessageKind || f.IsMap():
			case f.Message().FullName() == image.FullName():
				paths = append(paths, append(to, end))
			case len(to) < maxDepth:
				look(f.Message(), to)
			}
		}
	}
	look(m.ProtoReflect().Descriptor(), nil)
	return paths
}

// Field is one field of an encoded message.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	// Content is set for a length-delimited field.
	Content []byte
	// Begin and End are the offsets of the field in the message.
	Begin, End int
}

// Fields yields the fields of a message in their order, up to the first malformed one.
func Fields(message []byte) iter.Seq[Field] {
	return func(yield func(Field) bool) {
		for at := 0; at < len(message); {
			n, t, head := protowire.ConsumeTag(message[at:])
			if head < 0 {
				return
			}
			value := message[at+head:]
			size := protowire.ConsumeFieldValue(n, t, value)
			if size < 0 {
				return
			}
			f := Field{Number: n, Type: t, Begin: at, End: at + head + size}
			if t == protowire.BytesType {
				f.Content, _ = protowire.ConsumeBytes(value)
			}
			if !yield(f) {
				return
			}
			at = f.End
		}
	}
}

// is reports whether f is a length-delimited field of that number.
func (f Field) is(n protowire.Number) bool { return f.Number == n && f.Type == protowire.BytesType }

// WellFormed reports whether a message can be decoded as its type. A malformed message would make
// the whole merged list undecodable.
func WellFormed(b []byte, shape protoreflect.MessageDescriptor) bool {
	end := 0
	for f := range Fields(b) {
		end = f.End
		known := shape.Fields().ByNumber(f.Number)
		if known == nil || f.Type != protowire.BytesType {
			continue
		}
		switch known.Kind() {
		case protoreflect.MessageKind:
			if !WellFormed(f.Content, known.Message()) {
				return false
			}
		case protoreflect.StringKind:
			if !utf8.Valid(f.Content) {
				return false
			}
		}
	}
	return end == len(b)
}

// Items yields the items of a list.
func Items(list Frame) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for f := range Fields(list) {
			if f.is(ItemsField) && !yield(f.Content) {
				return
			}
		}
	}
}

// Text returns the last value of a string field, which is the valid one in protobuf.
func Text(message []byte, field protowire.Number) string {
	var value []byte
	for f := range Fields(message) {
		if f.is(field) {
			value = f.Content
		}
	}
	return string(value)
}

// Chunks splits a list into lists of at most limit bytes, unless a single item is larger. An empty
// list has no chunks.
func (f Frame) Chunks(limit int) []Frame {
	if len(f) == 0 {
		return nil
	}
	var all []Frame
	begin := 0
	for field := range Fields(f) {
		if field.Begin > begin && field.End-begin > limit {
			all, begin = append(all, f[begin:field.Begin]), field.Begin
		}
	}
	return append(all, f[begin:])
}

// Renamed returns message with name applied to the strings at the end of path. It returns message
// itself if nothing changes.
func Renamed(message []byte, path []protowire.Number, name func(string) string) []byte {
	return Replaced(message, path[0], func(content []byte) []byte {
		if len(path) > 1 {
			return Renamed(content, path[1:], name)
		}
		return []byte(name(string(content)))
	})
}

// Replaced returns message with change applied to each occurrence of a length-delimited field. It
// returns message itself if nothing changes.
func Replaced(message []byte, field protowire.Number, change func([]byte) []byte) []byte {
	var out []byte
	done := 0
	for f := range Fields(message) {
		if !f.is(field) {
			continue
		}
		other := change(f.Content)
		if bytes.Equal(other, f.Content) {
			continue
		}
		if out == nil { // allocate once: names differ little in length
			out = make([]byte, 0, len(message)+len(message)/8+64)
		}
		out = append(out, message[done:f.Begin]...)
		out = protowire.AppendTag(out, f.Number, f.Type)
		out = protowire.AppendBytes(out, other)
		done = f.End
	}
	if out == nil {
		return message
	}
	return append(out, message[done:]...)
}

// WithText returns message with a string field appended: of several values the last counts. It
// returns message itself if the field already has the value.
func WithText(message []byte, field protowire.Number, value string) []byte {
	if Text(message, field) == value {
		return message
	}
	out := protowire.AppendTag(bytes.Clone(message), field, protowire.BytesType)
	return protowire.AppendString(out, value)
}

// Without returns a list without the items that drop selects, or the list itself if drop selects
// none.
func Without(list Frame, drop func(item []byte) bool) Frame {
	var kept Frame
	done := 0
	for f := range Fields(list) {
		if f.is(ItemsField) && drop(f.Content) {
			kept = append(kept, list[done:f.Begin]...)
			done = f.End
		}
	}
	if done == 0 {
		return list
	}
	return append(kept, list[done:]...)
}
