package main

import (
	"fmt"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// settingsVariable is where Kata looks for its configuration if no options name
// one: pkg/containerd-shim-v2/create.go, loadRuntimeConfig.
const settingsVariable = "KATA_CONF_FILE"

// decode reads options as typeurl did before version 2, with which Kata was built
// until 3.2: a URL is the name of a type and nothing else
// (github.com/containerd/typeurl v1.0.2, types.go, getTypeByUrl).
func decode(a *anypb.Any) (proto.Message, error) {
	var m proto.Message
	switch a.GetTypeUrl() {
	case "runtimeoptions.v1.Options":
		m = &runtimeoptions.Options{}
	case "containerd.runc.v1.Options":
		m = &runcoptions.Options{}
	default:
		return nil, fmt.Errorf("type with url %s: not found", a.GetTypeUrl())
	}
	return m, proto.Unmarshal(a.GetValue(), m)
}

// configPath is what options say; options of runc are passed over.
func configPath(a *anypb.Any) (string, error) {
	if a == nil {
		return "", nil
	}
	m, err := decode(a)
	if err != nil {
		return "", err
	}
	if o, ok := m.(*runtimeoptions.Options); ok {
		return o.GetConfigPath(), nil
	}
	return "", nil
}
