package shim

import (
	"testing"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/internal/test"
)

func TestReadInfo(t *testing.T) {
	const features = `{"ociVersionMax":"1.3.0"}`
	for name, tc := range map[string]struct {
		info *types.RuntimeInfo
		want string
	}{
		"features":                 {&types.RuntimeInfo{Features: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/features/Features", Value: []byte(features)}}, features},
		"features of another type": {&types.RuntimeInfo{Features: &anypb.Any{TypeUrl: "example.com/Own", Value: []byte(features)}}, ""},
		"nothing but versions":     {&types.RuntimeInfo{}, ""},
	} {
		tc.info.Name, tc.info.Version = "io.containerd.runc.v2", &types.RuntimeVersion{Version: "v2.4.2"}
		answer := test.Value(proto.Marshal(tc.info))(t)
		called, version, got, err := Protocol{}.ReadInfo(answer)
		if err != nil || called != "io.containerd.runc.v2" || version != "v2.4.2" || string(got) != tc.want {
			t.Errorf("%s: %q, %q, %v", name, version, got, err)
		}
	}
	if _, _, _, err := (Protocol{}).ReadInfo([]byte("flag provided but not defined: -info")); err == nil {
		t.Error("a usage text was accepted as an answer")
	}
}
