package router

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// large is the least size, in bytes, of the known or the unknown fields of an answer for which
// codec bypasses gRPC's buffer pool.
const large = 16 << 10

// codec is gRPC's codec, except for large answers. Their unknown fields, if large, are sent without
// a copy; the rest is encoded into a buffer of exactly its size, because buffers of gRPC's pool are
// up to a MiB larger and are cleared for each answer.
type codec struct {
	encoding.CodecV2
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	var pieces mem.BufferSlice
	unread := m.ProtoReflect().GetUnknown()
	if len(unread) >= large {
		m = withoutUnknown(m)
	} else {
		unread = nil
	}
	size := proto.Size(m)
	if size < large && unread == nil {
		return c.CodecV2.Marshal(v)
	}
	if size > 0 {
		encoded, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, size), m)
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, mem.SliceBuffer(encoded))
	}
	if unread != nil {
		pieces = append(pieces, mem.SliceBuffer(unread)) // the encoding has unknown fields at the end
	}
	return pieces, nil
}

// withoutUnknown returns a copy of a message without its unknown fields. The copy shares the rest.
func withoutUnknown(m proto.Message) proto.Message {
	from := m.ProtoReflect()
	to := from.New()
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(f, v)
		return true
	})
	return to.Interface()
}
