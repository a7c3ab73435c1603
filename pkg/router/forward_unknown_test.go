package router

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// text returns a message with one field.
func text(n protowire.Number, value string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), value))
}

func TestOwnersThatNewerCallsMention(t *testing.T) {
	sandbox, twin, container := "aaaaaa1"+strings.Repeat("0", 57), "aaaaaa2"+strings.Repeat("0", 57), "bbbbbb"+strings.Repeat("0", 58)
	o := newOwners()
	o.adopt(&inventoried{routertest.New("one"), func() []handler.Owned { return []handler.Owned{owned(sandbox, container)} }})
	other := []handler.Owned{owned(twin)}
	o.adopt(&inventoried{routertest.New("two"), func() []handler.Owned { return other }})
	late := "cccccc" + strings.Repeat("0", 58)
	other = append(other, owned(late))
	number := string(protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 7))
	for name, c := range map[string]struct{ message, want string }{
		"empty message":                   {"", ""},
		"other texts":                     {text(1, "hello") + text(2, "aaaaaa1"), ""},
		"a sandbox":                       {text(1, sandbox), sandbox},
		"a container behind other fields": {number + text(1, "x") + text(9, container), container},
		"a container in a repeated field": {text(4, "x") + text(4, container), container},
		"in a nested message":             {text(2, text(1, number+text(7, sandbox))), sandbox},
		"a sandbox that is not known yet": {text(1, late), late},
		"an id that no backend has":       {text(1, strings.Repeat("d", 64)), ""},
		"a prefix of a sandbox":           {text(1, "aaaaaa1"), sandbox},
		"a prefix of a container":         {text(1, "bbbbbb"), container},
		"a prefix that is too short":      {text(1, "bbbbb"), ""},
		"not a prefix of an id":           {text(1, "bbbbbbx"), ""},
		"a full id after a prefix":        {text(1, "aaaaaa1") + text(2, container), container},
		"not a message":                   {"\xff\xff", ""},
	} {
		m := &emptypb.Empty{}
		m.ProtoReflect().SetUnknown(protoreflect.RawFields(c.message))
		owner, err := o.mentioned(m)
		got := ""
		if owner != nil {
			got = owner.ID
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	m := &emptypb.Empty{}
	m.ProtoReflect().SetUnknown(protoreflect.RawFields(text(1, "aaaaaa")))
	test.Refused(t, test.Err(o.mentioned(m)), errdefs.IsInvalidArgument, sandbox, twin)
}
