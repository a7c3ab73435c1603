package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Frame is an encoded message that nobody has read.
type Frame []byte

// Codec is gRPC's own for messages, and leaves frames as they are.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns gRPC's codec, which leaves frames as they are.
func NewCodec() Codec { return Codec{encoding.GetCodecV2(proto.Name)} }

// Name implements encoding.CodecV2. gRPC makes a name the subtype of each
// call's content type. Without one the type is "application/grpc", which means
// protobuf to every server and is the only one that passes CRI-O's socket: other
// protocols share that, and calls are told from them by exactly this type.
func (Codec) Name() string { return "" }

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(*f)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*Frame); ok {
		*f = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Valid says whether f is a sequence of protobuf fields. What is in them is not
// looked at.
func (f Frame) Valid() bool {
	end := 0
	for field := range Fields(f) {
		end = field.End
	}
	return end == len(f)
}

// Carry makes m a message that is encoded as f: its fields are all among those
// that it does not know. Its getters see nothing of them. Lists that are carried
// can be merged by merging what their messages do not know, because that is how
// the encoding defines the merging of messages.
func (f Frame) Carry(m protoreflect.ProtoMessage) {
	m.ProtoReflect().SetUnknown(protoreflect.RawFields(f))
}
