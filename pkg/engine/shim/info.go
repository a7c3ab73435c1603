package shim

import (
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
)

// Protocol is what shims say outside of the Task API.
type Protocol struct{}

// ReadInfo reads what a shim of containerd 2 answers to -info: its name and version,
// and the features of the runtime that it drives, as JSON, if it tells them.
func (Protocol) ReadInfo(answer []byte) (name, version string, features []byte, err error) {
	info := &types.RuntimeInfo{}
	if err := proto.Unmarshal(answer, info); err != nil {
		return "", "", nil, fmt.Errorf("decode the shim's -info: %w", err)
	}
	if f := info.GetFeatures(); strings.HasSuffix(f.GetTypeUrl(), "/features/Features") {
		features = f.GetValue()
	}
	return info.GetName(), info.GetVersion().GetVersion(), features, nil
}
