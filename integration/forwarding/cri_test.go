package forwarding

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// What the newer CRI of these tests has in addition to that of berth.
const (
	newerField = 20001 // a text, in every message
	newestEnum = 77    // a value, in every enumeration
)

// cri is a version of the CRI, as descriptors.
type cri struct {
	protoreflect.FileDescriptor
}

// thisCRI is the version that berth is built with.
func thisCRI() cri {
	return cri{(&runtimeapi.VersionRequest{}).ProtoReflect().Descriptor().ParentFile()}
}

// newerCRI is thisCRI with one more field in every message, one more value in every enumeration,
// three more calls, and one more service.
func newerCRI(t *testing.T) cri {
	t.Helper()
	file := protodesc.ToFileDescriptorProto(thisCRI())
	for _, m := range file.GetMessageType() {
		extend(m)
	}
	for _, e := range file.GetEnumType() {
		e.Value = append(e.Value, &descriptorpb.EnumValueDescriptorProto{Name: proto.String(e.GetName() + "_NEWEST"), Number: proto.Int32(newestEnum)})
	}
	text, one := descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()
	file.MessageType = append(file.MessageType, &descriptorpb.DescriptorProto{Name: proto.String("Newer"), Field: []*descriptorpb.FieldDescriptorProto{
		{Name: proto.String("container_id"), Number: proto.Int32(1), Type: text, Label: one},
		{Name: proto.String("inner"), Number: proto.Int32(2), Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".runtime.v1.Newer"), Label: one},
		{Name: proto.String("said"), Number: proto.Int32(3), Type: text, Label: one},
	}})
	call := func(name string, from, to bool) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: proto.String(name), InputType: proto.String(".runtime.v1.Newer"), OutputType: proto.String(".runtime.v1.Newer"),
			ClientStreaming: proto.Bool(from), ServerStreaming: proto.Bool(to),
		}
	}
	calls := []*descriptorpb.MethodDescriptorProto{call("NewerCall", false, false), call("NewerStream", false, true), call("NewerTalk", true, true)}
	file.Service[0].Method = append(file.Service[0].Method, calls...)
	file.Service = append(file.Service, &descriptorpb.ServiceDescriptorProto{Name: proto.String("NewerService"), Method: calls})
	made, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	testbed.Must(t, err)
	return cri{made}
}

func extend(m *descriptorpb.DescriptorProto) {
	if m.GetOptions().GetMapEntry() {
		return
	}
	m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
		Name: proto.String("newer_text"), JsonName: proto.String("newerText"), Number: proto.Int32(newerField),
		Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
	})
	for _, nested := range m.GetNestedType() {
		extend(nested)
	}
}

// methods returns all calls of the CRI.
func (c cri) methods() (all []protoreflect.MethodDescriptor) {
	for i := range c.Services().Len() {
		s := c.Services().Get(i)
		for j := range s.Methods().Len() {
			all = append(all, s.Methods().Get(j))
		}
	}
	return all
}

// method returns the call with that full name of gRPC, nil if the CRI does not have it.
func (c cri) method(full string) protoreflect.MethodDescriptor {
	for _, m := range c.methods() {
		if path(m) == full {
			return m
		}
	}
	return nil
}

func path(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// filling fills messages with values that show where they came from.
type filling struct {
	// by is the beginning of all texts.
	by string
	// handler is the value of each field runtime_handler.
	handler string
}

// full returns a message with a value in each field, at every level.
func (f filling) full(d protoreflect.MessageDescriptor) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	f.fill(m, f.by, 0)
	return m
}

// deep limits how deep messages are nested: deeper than any message of the CRI.
const deep = 8

func (f filling) fill(m protoreflect.Message, at string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		where := fmt.Sprintf("%s.%d", at, field.Number())
		if one := field.ContainingOneof(); one != nil && !one.IsSynthetic() && one.Fields().Get(0) != field {
			continue
		}
		switch {
		case field.IsMap():
			v := m.NewField(field).Map().NewValue()
			if field.MapValue().Message() == nil {
				v = f.scalar(field.MapValue(), where)
			} else if depth < deep {
				f.fill(v.Message(), where, depth+1)
			}
			key := protoreflect.ValueOfString(where + "-key")
			if field.MapKey().Kind() != protoreflect.StringKind {
				key = f.scalar(field.MapKey(), where)
			}
			m.Mutable(field).Map().Set(key.MapKey(), v)
		case field.IsList() && field.Message() != nil:
			if depth < deep {
				f.fill(m.Mutable(field).List().AppendMutable().Message(), where, depth+1)
			}
		case field.IsList():
			m.Mutable(field).List().Append(f.scalar(field, where))
		case field.Message() != nil:
			if depth < deep {
				f.fill(m.Mutable(field).Message(), where, depth+1)
			}
		default:
			m.Set(field, f.scalar(field, where))
		}
	}
}

func (f filling) scalar(field protoreflect.FieldDescriptor, where string) protoreflect.Value {
	number := int64(field.Number())
	switch field.Kind() {
	case protoreflect.StringKind:
		switch field.Name() {
		case "runtime_handler":
			return protoreflect.ValueOfString(f.handler)
		case "url": // berth accepts session URLs of this node only
			return protoreflect.ValueOfString("http://127.0.0.1:1/" + where)
		}
		return protoreflect.ValueOfString(where)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(where))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(newestEnum)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(number)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(number))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(number))
	}
	panic(fmt.Sprintf("no value for %s of kind %v", field.FullName(), field.Kind()))
}

// set sets the text fields with these names; names that the message does not have are ignored.
func set(m protoreflect.Message, texts map[protoreflect.Name]string) {
	for name, value := range texts {
		if f := m.Descriptor().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			m.Set(f, protoreflect.ValueOfString(value))
		}
	}
}

// get returns a text field of a message, empty if it has no such field.
func get(m protoreflect.Message, name protoreflect.Name) string {
	f := m.Descriptor().Fields().ByName(name)
	if f == nil {
		return ""
	}
	return m.Get(f).String()
}

// as decodes a message as another type.
func as(t *testing.T, m proto.Message, d protoreflect.MessageDescriptor) *dynamicpb.Message {
	t.Helper()
	encoded, err := proto.Marshal(m)
	testbed.Must(t, err)
	other := dynamicpb.NewMessage(d)
	testbed.Must(t, proto.Unmarshal(encoded, other))
	return other
}
