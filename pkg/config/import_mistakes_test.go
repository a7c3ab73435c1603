package config

import (
	"strings"
	"testing"
)

// TestImportMistakes is TestMistakes for files of other daemons. A mistake affects
// only one handler, and the message begins with the place of the mistake.
func TestImportMistakes(t *testing.T) {
	const crio = "[crio.runtime.runtimes.a]\n"
	const cd = "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.a]\nruntime_type = \"io.containerd.runc.v2\"\n"
	const options = "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.a.options]\n"
	for _, c := range []struct {
		what, kind, toml, want string
	}{
		{"missing binary", "crio", crio + "runtime_path = \"/no/a\"", `2:1: runtimes.a.runtime_path: /no/a does not exist; install it, or correct the path`},
		{"no path, and no binary of the handler's name", "crio", crio, `1:2: runtimes.a.runtime_path: a was not found in $DIR/bin; install it`},
		{"relative path", "crio", crio + "runtime_path = \"bin/no-such-runtime\"", `2:1: runtimes.a.runtime_path: "bin/no-such-runtime" must be an absolute path`},
		{"world-writable binary", "crio", crio + "runtime_path = \"$BIN/open\"", `2:1: runtimes.a.runtime_path: $DIR/bin/open can be changed by every user (owner 0, mode 0777), which would be run as root; run chmod o-w $DIR/bin/open`},
		{"unknown type", "crio", crio + "runtime_path = \"$BIN/crun\"\nruntime_type = \"virtual\"", `3:1: runtimes.a.runtime_type: "virtual" must be "oci", "shim" or "cri"`},
		{"shim without a type", "crio", crio + "runtime_path = \"$BIN/containerd-shim-kata-v2\"", `1:2: runtimes.a.runtime_type: containerd-shim-kata-v2 is a shim, not an OCI runtime (did you mean "shim"?)`},
		{"oci runtime of type vm", "crio", crio + "runtime_path = \"$BIN/crun\"\nruntime_type = \"vm\"", `3:1: runtimes.a.runtime_type: crun is an OCI runtime, not a shim (did you mean "oci"?)`},
		{"configuration file for crun", "crio", crio + "runtime_path = \"$BIN/crun\"\nruntime_config_path = \"/etc/passwd\"", `3:1: runtimes.a.runtime_config_path: crun does not read a configuration file; this key is for shims and runsc`},
		{"missing configuration", "crio", crio + "runtime_path = \"$BIN/containerd-shim-kata-v2\"\nruntime_type = \"vm\"\nruntime_config_path = \"/no/remote.toml\"", `4:1: runtimes.a.runtime_config_path: /no/remote.toml does not exist`},
		{"bad duration", "crio", crio + "runtime_path = \"$BIN/crun\"\ncontainer_create_timeout = \"long\"", `3:1: runtimes.a.container_create_timeout: "long" is not a duration; write a duration with its unit in quotes, such as "90s" or "4h"`},
		{"annotations as a string", "crio", crio + "runtime_path = \"$BIN/crun\"\nallowed_annotations = \"all\"", `3:1: runtimes.a.pod_annotations: must be a list of strings, not a string (did you mean "[\"all\"]"?)`},
		{"relative root", "crio", crio + "runtime_path = \"$BIN/crun\"\nruntime_root = \"run\"", `3:1: runtimes.a.runtime_root: "run" must be an absolute path`},
		{"same key twice", "crio", crio + "runtime_path = \"$BIN/crun\"\nruntime_path = \"$BIN/crun\"", `3:1: crio.runtime.runtimes.a.runtime_path: is already set at line 2; keep one of the two`},
		{"same handler twice", "crio", crio + "runtime_path = \"$BIN/crun\"\n" + crio, `3:2: crio.runtime.runtimes.a: is already set at line 1; keep one of the two`},
		{"template", "containerd", "{{ template \"base\" . }}\n" + cd, `1:1: invalid character at start of key: U+007B '{'`},
		{"missing BinaryName", "containerd", cd + options + "BinaryName = \"/no/nvidia\"", `4:1: runtimes.a.runtime_path: /no/nvidia does not exist; install it, or correct the path`},
		{"BinaryName that is not found", "containerd", cd + options + "BinaryName = \"nvidia\"", `4:1: runtimes.a.runtime_path: nvidia was not found in $DIR/bin; install it`},
		{"BinaryName that is a number", "containerd", cd + options + "BinaryName = 1", `4:1: runtimes.a.runtime_path: must be a string, not an integer`},
		{"option that is not a boolean", "containerd", cd + options + "BinaryName = \"crun\"\nNoNewKeyring = \"yes\"", `5:1: runtimes.a.options.no_new_keyring: must be true or false, not a string`},
		{"shim that is not found", "containerd", strings.Replace(cd, "runc.v2", "wasm.v1", 1), `2:1: runtimes.a.runtime_path: containerd-shim-wasm-v1 was not found in $DIR/bin; install it`},
		{"type that does not name a shim", "containerd", strings.Replace(cd, "io.containerd.runc.v2", "runc", 1), `2:1: runtimes.a.runtime_path: a shim of the type "runc" was not found in $DIR/bin; install it`},
		{"unknown snapshotter", "containerd", cd + "snapshotter = \"nydus\"\n" + options + "BinaryName = \"crun\"", `3:1: runtimes.a.snapshotter: "nydus" must be "overlayfs", "erofs" or "native"`},
		{"missing base spec", "containerd", cd + "base_runtime_spec = \"/no/spec.json\"\n" + options + "BinaryName = \"crun\"", `3:1: runtimes.a.base_runtime_spec: /no/spec.json does not exist`},
		{"bad pattern", "containerd", cd + "pod_annotations = [\"a[\"]\n" + options + "BinaryName = \"crun\"", `3:1: runtimes.a.pod_annotations: "a[" is not a pattern; write a name with *, ? and [a-z], such as "com.example.*"`},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "runc", "crun", "containerd-shim-kata-v2")
			n.binary("bin/open", 0o777)
			n.write("config.toml", goodMain+"[import]\n"+c.kind+" = [\""+n.path("foreign.toml")+"\"]\n")
			n.write("foreign.toml", c.toml)
			cfg := n.load()
			got, served, broken := n.relative(cfg.Problems.Error()), "crun runc", "a"
			if got == "" { // the file is valid, and the probe finds what is missing
				got, served, broken = strings.Join(n.lacks(cfg), "\n"), "a crun runc", ""
			}
			if want := "$DIR/foreign.toml:" + c.want; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if names(cfg) != served || brokenNames(cfg) != broken {
				t.Errorf("served are %s, broken %s", names(cfg), brokenNames(cfg))
			}
		})
	}
}
