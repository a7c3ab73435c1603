package supervisor

import (
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	runcapi "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/internal/test"
)

func TestCheckpointOptions(t *testing.T) {
	test.Checkf(t, checkpointOptions(nil, &runcapi.CheckpointOptions{}), "no options")
	good := test.Value(anypb.New(&runcapi.CheckpointOptions{WorkPath: "/work"}))(t)
	for _, url := range []string{good.GetTypeUrl(), string(good.MessageName())} {
		o := &runcapi.CheckpointOptions{}
		if err := checkpointOptions(&anypb.Any{TypeUrl: url, Value: good.GetValue()}, o); err != nil || o.GetWorkPath() != "/work" {
			t.Errorf("options of type %s: %v, %v", url, o, err)
		}
	}
	other := test.Value(anypb.New(&taskAPI.PauseRequest{}))(t)
	for name, a := range map[string]*anypb.Any{"another message": other, "not a message": {TypeUrl: good.GetTypeUrl(), Value: []byte{0xff}}} {
		test.Is(t, checkpointOptions(a, &runcapi.CheckpointOptions{}), errdefs.IsInvalidArgument, "%s", name)
	}
}
