package main

import (
	"fmt"

	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/typeurl/v2"
)

// settingsVariable is how the start action tells the server where its settings are.
const settingsVariable = "BERTH_TEST_WASM_SHIM_CONFIG"

// configPath is what options say: those of runwasi's shims have this type
// (containerd-shimkit/src/sandbox/shim/local.rs, get_from_options).
func configPath(a typeurl.Any) (string, error) {
	v, err := typeurl.UnmarshalAny(a)
	if err != nil {
		return "", err
	}
	o, ok := v.(*runtimeoptions.Options)
	if !ok {
		return "", fmt.Errorf("invalid options type %s", a.GetTypeUrl())
	}
	return o.GetConfigPath(), nil
}
