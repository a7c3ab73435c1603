package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Frame is an encoded message that was not decoded.
type Frame []byte

// Codec is gRPC's own codec, except that it passes frames on unchanged.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2(proto.Name)} }

// Name implements encoding.CodecV2. gRPC appends a name to the content type of each call. Without
// one the type is "application/grpc", which means protobuf to every server. CRI-O's socket accepts
// no other type: it also serves other protocols, and recognizes gRPC by exactly this type.
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

// Valid reports whether f is a sequence of protobuf fields. It does not check their content.
func (f Frame) Valid() bool {
	end := 0
	for field := range Fields(f) {
		end = field.End
	}
	return end == len(f)
}

// Carry puts f into the unknown fields of m, so that m is encoded as f; the getters of m do not
// return its content. Appending the unknown fields of messages merges their lists, because protobuf
// merges messages by concatenation.
func (f Frame) Carry(m protoreflect.ProtoMessage) {
	m.ProtoReflect().SetUnknown(protoreflect.RawFields(f))
}
