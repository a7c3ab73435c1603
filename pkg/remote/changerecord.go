package remote

import (
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Kinds of records in a state file, beside those of changes and of pins.
const (
	handlersRecord  kind = 'R'
	imageList       kind = 'I'
	filesystemsInfo kind = 'F'
	sandboxList     kind = 'P'
	containerList   kind = 'C'
)

// head begins a record.
func head(k kind, size int) []byte { return binary.AppendUvarint([]byte{byte(k)}, uint64(size)) }

// cutRecord returns the first record of content, and what is behind it. It is not
// whole in a file whose writer was killed.
func cutRecord(content []byte) (k kind, body, rest []byte, whole bool) {
	if len(content) == 0 {
		return 0, nil, nil, false
	}
	size, n := binary.Uvarint(content[1:])
	if n <= 0 || size > uint64(len(content)-1-n) {
		return 0, nil, content, false
	}
	end := 1 + n + int(size)
	return kind(content[0]), content[1+n : end], content[end:], true
}

// encode is the record of a change.
func (c change) encode() ([]byte, error) {
	content, err := []byte(c.id), error(nil)
	var before []byte
	switch c.kind {
	case madeSandbox:
		content, err = proto.Marshal(c.sandbox)
		if c.pin != "" {
			before = encodePin(c.sandbox.GetId(), c.pin)
		}
	case madeContainer:
		content, err = proto.Marshal(c.container)
	}
	return slices.Concat(before, head(c.kind, len(content)), content), err
}

// decode is the change of a record.
func decode(k kind, content []byte) (change, error) {
	c := change{kind: k}
	switch k {
	case madeSandbox:
		c.sandbox = &runtimeapi.PodSandbox{}
		return c, proto.Unmarshal(content, c.sandbox)
	case madeContainer:
		c.container = &runtimeapi.Container{}
		return c, proto.Unmarshal(content, c.container)
	case startedContainer, endedContainer, removedContainer, stoppedSandbox, removedSandbox:
		c.id = string(content)
		return c, nil
	}
	return c, fmt.Errorf("unknown kind of record %q", byte(k))
}
