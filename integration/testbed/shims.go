package testbed

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/berth-cri/berth/integration/shims"
)

// Kata is a handler of the shim that imitates Kata's shim.
type Kata struct {
	// Path is the path of the shim, and Config is that of its settings.
	Path, Config string

	settings shims.Kata
}

// NewKata makes a Kata handler. The default runtime in the settings is runc. The shim is
// BERTH_TEST_KATA_SHIM; without that variable it is built, once per process.
func NewKata(t T, settings shims.Kata) *Kata {
	t.Helper()
	if cgroupDriver() == systemdDriver {
		Missing(t, "the imitation of Kata's shim only supports cgroupfs")
	}
	program := os.Getenv("BERTH_TEST_KATA_SHIM")
	if program == "" {
		dir, err := kataBuild()
		if err != nil {
			t.Fatalf("%v", err)
		}
		program = filepath.Join(dir, "kata")
	}
	body, err := os.ReadFile(program)
	Mustf(t, err, "read the shim")
	if settings.Runtime == "" {
		settings.Runtime = Part(t, Runc)
	}
	dir := t.TempDir()
	k := &Kata{Path: filepath.Join(dir, "containerd-shim-kata-v2"), Config: filepath.Join(dir, "kata.json"), settings: settings}
	if err := os.WriteFile(k.Path, body, 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatalf("write the shim: %v", err)
	}
	k.Set(t, func(*shims.Kata) {})
	return k
}

var kataBuild = sync.OnceValues(func() (string, error) { return buildInto("bin/shims", "", "./integration/shims/kata") })

// Set changes the settings of shims that start later.
func (k *Kata) Set(t T, change func(*shims.Kata)) {
	t.Helper()
	change(&k.settings)
	text, err := json.Marshal(k.settings)
	if err == nil {
		err = os.WriteFile(k.Config, text, 0o600)
	}
	Mustf(t, err, "write the settings of the shim")
}

// Wasm is a handler of the shim that imitates the shims of runwasi.
type Wasm struct {
	// Path is the path of the shim, and Config is that of its settings.
	Path, Config string
}

// NewWasm makes a Wasm handler. The default runtime in the settings is runc. The shim is
// BERTH_TEST_WASM_SHIM; without that variable it is built, once per process. name is the shim's
// file name, by which berth may know that it runs modules.
func NewWasm(t T, name string, settings shims.Wasm) *Wasm {
	t.Helper()
	program := os.Getenv("BERTH_TEST_WASM_SHIM")
	if program == "" {
		dir, err := wasmBuild()
		if err != nil {
			t.Fatalf("%v", err)
		}
		program = filepath.Join(dir, "wasm")
	}
	if settings.Runtime == "" {
		settings.Runtime = Part(t, Runc)
	}
	dir := t.TempDir()
	w := &Wasm{Path: filepath.Join(dir, name), Config: filepath.Join(dir, "wasm.json")}
	body, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(w.Path, body, 0o755) //nolint:gosec // it is a program
	}
	Mustf(t, err, "install the shim")
	text, err := json.Marshal(settings)
	if err == nil {
		err = os.WriteFile(w.Config, text, 0o600)
	}
	Mustf(t, err, "write the settings of the shim")
	return w
}

var wasmBuild = sync.OnceValues(func() (string, error) { return buildInto("bin/shims", "", "./integration/shims/wasm") })

// TOML is the handler's table with additional lines.
func (w *Wasm) TOML(name, lines string) string {
	return fmt.Sprintf("[runtimes.%s]\nruntime_type = \"shim\"\nruntime_path = %q\nruntime_config_path = %q\nrequired_devices = []\n%s\n", name, w.Path, w.Config, lines)
}

// TOML is the handler's table with additional lines.
func (k *Kata) TOML(name, lines string) string {
	return fmt.Sprintf("[runtimes.%s]\nruntime_type = \"shim\"\nruntime_path = %q\nruntime_config_path = %q\nrequired_devices = []\n%s\n", name, k.Path, k.Config, lines)
}
