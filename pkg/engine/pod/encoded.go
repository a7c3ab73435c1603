package pod

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// encodedItem is an item of a list as it is sent, with the tag of its field.
type encodedItem struct {
	state int32
	bytes []byte
}

const itemsField = 1

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

// EncodedList is a list of items. Those that are not in it are encoded as nothing.
func EncodedList[O any](all []O, encoded func(O) ([]byte, error)) ([]byte, error) {
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
