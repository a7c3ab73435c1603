// Package wire reads and changes encoded messages of the CRI without decoding them, so that
// fields which are newer than this build stay.
package wire

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Numbers of fields in the CRI's messages, by their descriptors. All lists have their
// items in the same field, and items their ids.
var (
	ItemsField            = numberOf(&runtimeapi.ListPodSandboxResponse{}, "items")
	IDField               = numberOf(&runtimeapi.PodSandbox{}, "id")
	SandboxHandlerField   = numberOf(&runtimeapi.PodSandbox{}, "runtime_handler")
	ContainerSandboxField = numberOf(&runtimeapi.Container{}, "pod_sandbox_id")
	StatusField           = numberOf(&runtimeapi.PodSandboxStatusResponse{}, "status")
	StatusHandlerField    = numberOf(&runtimeapi.PodSandboxStatus{}, "runtime_handler")
)

// numberOf is the number of a field that the message has: anything else is a mistake of
// this package, which no call of it would survive.
func numberOf(m proto.Message, field protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(field).Number()
}

// deepest is how far a message is looked into: one that contains its own kind has no end.
const deepest = 8

// ImageHandlers are the paths to the names of handlers in the images that a message
// names, wherever it does.
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
			case len(to) < deepest:
				look(f.Message(), to)
			}
		}
	}
	look(m.ProtoReflect().Descriptor(), nil)
	return paths
}

// EachField calls visit with every length-delimited field of a valid message.
func EachField(message []byte, visit func(n protowire.Number, content []byte)) {
	for len(message) > 0 {
		n, t, head := protowire.ConsumeTag(message)
		if head < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(n, t, message[head:])
		if size < 0 {
			return
		}
		if t == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(message[head:])
			visit(n, content)
		}
		message = message[head+size:]
	}
}

// Sound says whether a message can be read as what it is to be. One that cannot
// would make the list unreadable that it is merged into.
func Sound(b []byte, shape protoreflect.MessageDescriptor) bool {
	for fields := shape.Fields(); len(b) > 0; {
		n, t, head := protowire.ConsumeTag(b)
		if head < 0 {
			return false
		}
		size := protowire.ConsumeFieldValue(n, t, b[head:])
		if size < 0 {
			return false
		}
		if field := fields.ByNumber(n); field != nil && t == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(b[head:])
			switch field.Kind() {
			case protoreflect.MessageKind:
				if !Sound(content, field.Message()) {
					return false
				}
			case protoreflect.StringKind:
				if !utf8.Valid(content) {
					return false
				}
			}
		}
		b = b[head+size:]
	}
	return true
}

// Text is the last value of a string field, as the encoding wants it.
func Text(message []byte, field protowire.Number) string {
	var value []byte
	EachField(message, func(n protowire.Number, content []byte) {
		if n == field {
			value = content
		}
	})
	return string(value)
}

// Chunks cuts a list into lists of at most limit bytes, unless one item alone is
// larger. An empty message has none.
func (f Frame) Chunks(limit int) []Frame {
	if len(f) == 0 {
		return nil
	}
	var all []Frame
	rest, begin, end := []byte(f), 0, 0
	for end < len(rest) {
		_, _, n := protowire.ConsumeField(rest[end:])
		if n < 0 {
			break
		}
		if end > begin && end+n-begin > limit {
			all, begin = append(all, f[begin:end]), end
		}
		end += n
	}
	return append(all, f[begin:])
}

// Renamed is message with the string at the end of path replaced by what name
// makes of it. It is message itself if nothing changes.
func Renamed(message []byte, path []protowire.Number, name func(string) string) []byte {
	return Replaced(message, path[0], func(content []byte) []byte {
		if len(path) > 1 {
			return Renamed(content, path[1:], name)
		}
		return []byte(name(string(content)))
	})
}

// Replaced is message with each occurrence of a length-delimited field replaced by
// what change makes of it. It is message itself if nothing changes.
func Replaced(message []byte, field protowire.Number, change func([]byte) []byte) []byte {
	var out []byte
	changed, done := false, 0
	for at := 0; at < len(message); {
		n, t, head := protowire.ConsumeTag(message[at:])
		if head < 0 {
			return message
		}
		size := protowire.ConsumeFieldValue(n, t, message[at+head:])
		if size < 0 {
			return message
		}
		if n == field && t == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(message[at+head:])
			if other := change(content); !bytes.Equal(other, content) {
				if !changed { // once: names differ little in length
					changed, out = true, make([]byte, 0, len(message)+len(message)/8+64)
				}
				out = append(out, message[done:at]...)
				out = protowire.AppendTag(out, n, t)
				out = protowire.AppendBytes(out, other)
				done = at + head + size
			}
		}
		at += head + size
	}
	if !changed {
		return message
	}
	return append(out, message[done:]...)
}

// WithText is message with a string field set, be it there or not: of several
// values the last counts.
func WithText(message []byte, field protowire.Number, value string) []byte {
	if Text(message, field) == value {
		return message
	}
	out := protowire.AppendTag(bytes.Clone(message), field, protowire.BytesType)
	return protowire.AppendString(out, value)
}

// Without is a list without some items; itself if there are none of them.
func Without(f Frame, drop func(item []byte) bool) Frame {
	var kept Frame
	done := 0
	for at := 0; at < len(f); {
		n, t, size := protowire.ConsumeField(f[at:])
		if size < 0 {
			return f
		}
		if n == ItemsField && t == protowire.BytesType {
			_, _, head := protowire.ConsumeTag(f[at:])
			if item, _ := protowire.ConsumeBytes(f[at+head:]); drop(item) {
				kept = append(kept, f[done:at]...)
				done = at + size
			}
		}
		at += size
	}
	if done == 0 {
		return f
	}
	return append(kept, f[done:]...)
}
