package router

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// large is from where on an answer is worth a second thought, in bytes.
const large = 16 << 10

// codec is gRPC's own, but for large answers. What nobody has read of them is
// handed on where it is. What was is encoded to a buffer that is as large as it has
// to be: those of gRPC's pool are up to a MiB larger, and cleared for each answer.
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
		m = read(m)
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
		pieces = append(pieces, mem.SliceBuffer(unread)) // where the encoding has it: at the end
	}
	return pieces, nil
}

// read is a message without what nobody has read of it. It shares the rest.
func read(m proto.Message) proto.Message {
	from := m.ProtoReflect()
	to := from.New()
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(f, v)
		return true
	})
	return to.Interface()
}
