package remote

import (
	"encoding/binary"
	"hash/maphash"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// digester tells lists apart by what they say. Daemons keep pods and labels in
// maps, so the same list comes in another order each time: that of items, and that
// of a map's entries in them, makes no difference. All else does.
type digester struct {
	// maps are the fields of an item that are maps, by number. Those of large
	// numbers count as something else, so that their order makes a difference.
	maps [32]bool
}

// seed is not known outside of this process, so nobody can make two lists that
// have one digest.
var seed = maphash.MakeSeed()

func digesterOf(shape protoreflect.MessageDescriptor) *digester {
	d := &digester{}
	item := shape.Fields().ByNumber(itemsField).Message()
	for i := range item.Fields().Len() {
		if f := item.Fields().Get(i); f.IsMap() && int(f.Number()) < len(d.maps) {
			d.maps[f.Number()] = true
		}
	}
	return d
}

// sum is the digest of a list.
func (d *digester) sum(f frame) uint64 {
	return mixed(f, func(n protowire.Number, _, content []byte) (uint64, bool) {
		if n != itemsField || content == nil {
			return 0, false
		}
		return mixed(content, d.entry), true
	})
}

// entry is the digest of a field of an item, if it is an entry of a map.
func (d *digester) entry(n protowire.Number, field, _ []byte) (uint64, bool) {
	if int(n) >= len(d.maps) || !d.maps[n] {
		return 0, false
	}
	return maphash.Bytes(seed, field), true
}

// mixed is a digest of a message in which the fields that free has a digest of may
// be anywhere. What is between them is taken as a whole. free gets a field with its
// tag, and the content of length-delimited ones.
func mixed(message []byte, free func(n protowire.Number, field, content []byte) (uint64, bool)) uint64 {
	var anywhere, inOrder uint64
	begin, at := 0, 0 // of what is between
	between := func() {
		if begin < at {
			inOrder = chain(inOrder, maphash.Bytes(seed, message[begin:at]))
		}
	}
	for at < len(message) {
		n, size, content := next(message[at:])
		if size < 0 {
			at = len(message)
			break
		}
		h, ok := free(n, message[at:at+size], content)
		if ok {
			between()
			begin = at + size
			anywhere += h
		}
		at += size
	}
	between()
	return chain(anywhere, inOrder)
}

// next is the size of the first field, and its content if it is length-delimited;
// negative if there is none.
func next(message []byte) (n protowire.Number, size int, content []byte) {
	n, t, head := protowire.ConsumeTag(message)
	if head < 0 {
		return 0, -1, nil
	}
	if t == protowire.BytesType {
		content, size = protowire.ConsumeBytes(message[head:])
	} else {
		size = protowire.ConsumeFieldValue(n, t, message[head:])
	}
	if size < 0 {
		return 0, -1, nil
	}
	return n, head + size, content
}

// chain is a hash of two in this order.
func chain(a, b uint64) uint64 {
	var both [16]byte
	binary.LittleEndian.PutUint64(both[:], a)
	binary.LittleEndian.PutUint64(both[8:], b)
	return maphash.Bytes(seed, both[:])
}
