package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/typeurl/v2"

	"github.com/berth-cri/berth/integration/shims"
)

// settingsVariable is how the start action tells the server where its settings are.
const settingsVariable = "BERTH_TEST_WASM_SHIM_CONFIG"

func readSettings(path string) (shims.Wasm, error) {
	var s shims.Wasm
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return s, fmt.Errorf("configuration of the shim: %w", err)
	}
	return s, nil
}

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
