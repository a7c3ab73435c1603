package config

import (
	"strings"
	"testing"
)

// TestMistakes has the message for each kind of mistake. Every message begins
// with the place of the mistake.
func TestMistakes(t *testing.T) {
	const runc = "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n"
	for _, c := range []struct {
		what, toml string
		want       string
	}{
		// Keys.
		{"near miss in a section", "[server]\nsoket = \"/x\"", `2:1: server.soket: unknown key (did you mean "socket"?)`},
		{"near miss of a section", "[servr]\nsocket = \"/x\"", `1:2: servr: unknown key (did you mean "server"?)`},
		{"near miss in a handler", runc + `runtime_pat = "/x"`, `3:1: runtimes.runc.runtime_pat: unknown key (did you mean "runtime_path"?)`},
		{"camel case", runc + "cniConfDir = \"/x\"", `3:1: runtimes.runc.cniConfDir: unknown key (did you mean "cni_conf_dir"?)`},
		{"unknown key without a similar one", "[log]\ncolour = true", `2:1: log.colour: unknown key; expected one of format, level`},
		{"dotted", "log.colour = true", `1:1: log.colour: unknown key; expected one of format, level`},
		{"inline", "log = { colour = true }", `1:9: log.colour: unknown key; expected one of format, level`},
		{"quoted", "[log]\n\"a b\" = 1", `2:1: log."a b": unknown key; expected one of format, level`},
		{"in another section", "[engine]\nsocket = \"/x\"", `2:1: engine.socket: unknown key here; it belongs into [server] (did you mean "server.socket"?)`},
		{"handler key in a section", "[engine]\nruntime_path = \"/x\"", `2:1: engine.runtime_path: unknown key here; it belongs into [runtimes.<handler>]`},
		{"top key in a section", "[engine]\ndefault_runtime = \"runc\"", `2:1: engine.default_runtime: unknown key here; it belongs at the top of the file, before the first table`},
		{"handler key in options", runc + "options = { snapshotter = \"native\" }", `3:13: runtimes.runc.options.snapshotter: unknown key; expected one of global_flags, no_new_keyring, no_pivot_root; snapshotter belongs into the handler's own table, not into options`},
		{"option at the top", "global_flags = [\"--x\"]", `1:1: global_flags: unknown key here; it belongs into [runtimes.<handler>.options]`},
		{"option in a section", "[engine]\nglobal_flags = [\"--x\"]", `2:1: engine.global_flags: unknown key here; it belongs into [runtimes.<handler>.options]`},
		{"option in a candidate", runc + "[runtimes.runc.candidate]\nruntime_path = \"$BIN/runsc\"\npercent = 1\nglobal_flags = [\"--x\"]", `6:1: runtimes.runc.candidate.global_flags: unknown key; expected one of percent, runtime_path; global_flags belongs into [runtimes.<handler>.options]`},
		{"option in the table of handlers", "[runtimes]\nglobal_flags = [\"--x\"]", `2:1: runtimes.global_flags: must be a handler's table, such as [runtimes.runc], not a list; global_flags belongs into [runtimes.<handler>.options]`},
		{"option in a handler", runc + "global_flags = [\"--x\"]", `3:1: runtimes.runc.global_flags: unknown key here; it belongs into [runtimes.<handler>.options] (did you mean "options.global_flags"?)`},
		{"engine key in a short section", "[nri]\nroot = \"/x\"", `2:1: nri.root: unknown key; expected one of disable, plugin_config_path, plugin_path, plugin_registration_timeout, plugin_request_timeout, socket_path; root belongs into [engine] (did you mean "engine.root"?)`},
		{"top key in a short section", "[nri]\ndefault_runtime = \"runc\"", `2:1: nri.default_runtime: unknown key; expected one of disable, plugin_config_path, plugin_path, plugin_registration_timeout, plugin_request_timeout, socket_path; default_runtime belongs at the top of the file, before the first table`},
		// Keys of CRI-O and containerd.
		{"containerd's default", "default_runtime_name = \"runc\"", `1:1: default_runtime_name: unknown key; use default_runtime (did you mean "default_runtime"?)`},
		{"containerd's table", "[plugins.\"io.containerd.cri.v1.runtime\"]\nx = 1", `1:2: plugins: unknown key: belongs to containerd; list the file in import.containerd to serve its handlers, or translate it: berth config import FILE`},
		{"CRI-O's table", "[crio.runtime]\nx = 1", `1:2: crio: unknown key: belongs to CRI-O; list the file in import.crio to serve its handlers, or translate it: berth config import FILE`},
		{"containerd's binary", runc + "BinaryName = \"/usr/bin/runc\"", `3:1: runtimes.runc.BinaryName: unknown key; use runtime_path (did you mean "runtime_path"?)`},
		{"CRI-O's monitor", runc + "monitor_path = \"/usr/bin/conmon\"", `3:1: runtimes.runc.monitor_path: unknown key; use engine.shim_path (did you mean "engine.shim_path"?)`},
		{"CRI-O's annotations", runc + "allowed_annotations = []", `3:1: runtimes.runc.allowed_annotations: unknown key; use pod_annotations (did you mean "pod_annotations"?)`},
		{"containerd's spelling", runc + "privileged_without_host_device = true", `3:1: runtimes.runc.privileged_without_host_device: unknown key (did you mean "privileged_without_host_devices"?)`},
		{"containerd's options", runc + "[runtimes.runc.options]\nBinaryName = \"/x\"", `4:1: runtimes.runc.options.BinaryName: unknown key; use runtime_path (did you mean "runtime_path"?)`},
		{"containerd's driver", runc + "[runtimes.runc.options]\nSystemdCgroup = true", `4:1: runtimes.runc.options.SystemdCgroup: unknown key; use engine.cgroup_driver (did you mean "engine.cgroup_driver"?)`},
		{"pause image", "[engine]\nsandbox_image = \"pause\"", `2:1: engine.sandbox_image: unknown key: berth needs no pause image; engine.pause_path is its sandbox process`},
		{"CRI-O's type", runc + `runtime_type = "vm"`, `3:1: runtimes.runc.runtime_type: must be "oci" or "shim"; what CRI-O calls "vm" is "shim" here (did you mean "shim"?)`},
		{"containerd's type", runc + `runtime_type = "io.containerd.kata.v2"`, `3:1: runtimes.runc.runtime_type: must be "oci" or "shim"; for containerd's io.containerd.kata.v2 write "shim" and the path of containerd-shim-kata-v2 as runtime_path (did you mean "shim"?)`},
		{"remote without a socket", "[runtimes.r]\nruntime_type = \"cri\"", `1:2: runtimes.r: endpoint is missing; set it to the socket of the other CRI daemon, such as "unix:///run/containerd/containerd.sock"`},
		{"remote with a binary", runc + `endpoint = "unix:///run/x.sock"`, `2:1: runtimes.runc.runtime_path: does not apply to a handler of another CRI daemon, which uses its own configuration; remove it, or endpoint`},
		{"endpoint that is a number", "[runtimes.r]\nendpoint = 5", `2:1: runtimes.r.endpoint: must be a string, not an integer`},
		{"endpoint without a scheme", "[runtimes.r]\nendpoint = \"/run/x.sock\"", `2:1: runtimes.r.endpoint: must begin with unix:// (did you mean "unix:///run/x.sock"?)`},
		{"endpoint on the network", "[runtimes.r]\nendpoint = \"tcp://host:1\"", `2:1: runtimes.r.endpoint: "tcp://host:1" must be unix:// and the absolute path of a socket, such as "unix:///run/containerd/containerd.sock"`},
		{"long endpoint", "[runtimes.r]\nendpoint = \"unix:///" + strings.Repeat("x", 107) + "\"", `2:1: runtimes.r.endpoint: the path has 108 bytes; the limit for unix socket paths is 107`},
		{"endpoint of an oci handler", runc + "runtime_type = \"oci\"\nendpoint = \"unix:///run/x.sock\"", `4:1: runtimes.runc.endpoint: is for handlers of another CRI daemon; remove it, or set runtime_type to "cri" and remove runtime_path`},
		{"remote handler of an oci handler", runc + `remote_handler = "x"`, `3:1: runtimes.runc.remote_handler: is for handlers of another CRI daemon; remove it, or set runtime_type to "cri" and remove runtime_path`},
		{"containerd's list of files", "imports = [\"/etc/containerd/conf.d/*.toml\"]", `1:1: imports: unknown key: drop-ins are read from conf.d beside this file; list those of containerd in import.containerd`},
		{"containerd's oldest table", "[plugins.cri.containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"", `1:2: plugins: unknown key: belongs to containerd; list the file in import.containerd to serve its handlers, or translate it: berth config import FILE`},
		{"CRI-O's handler", "[crio.runtime.runtimes.kata]\nruntime_path = \"/x\"", `1:2: crio: unknown key: belongs to CRI-O; list the file in import.crio to serve its handlers, or translate it: berth config import FILE`},
		{"CRI-O's runtime table without its top", "[runtime.runtimes.kata]\nruntime_path = \"/x\"", `1:2: runtime: unknown key (did you mean "runtimes"?)`},
		{"containerd's engine", runc + "runtime_engine = \"/usr/bin/crun\"", `3:1: runtimes.runc.runtime_engine: unknown key; use runtime_path (did you mean "runtime_path"?)`},
		{"containerd's configuration file of a shim", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-kata-v2\"\n[runtimes.a.options]\nConfigPath = \"/x\"", `4:1: runtimes.a.options.ConfigPath: unknown key; use runtime_config_path (did you mean "runtime_config_path"?)`},
		{"type of a shim's options", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-kata-v2\"\n[runtimes.a.options]\nTypeUrl = 1", `4:1: runtimes.a.options.TypeUrl: must be a string, not an integer`},
		{"containerd's snapshotters", "[proxy_plugins.nydus]\ntype = \"snapshot\"", `1:2: proxy_plugins: unknown key; use snapshotters (did you mean "snapshotters"?)`},
		{"CRI-O's seconds", runc + "container_create_timeout = 240", `3:1: runtimes.runc.container_create_timeout: must be a duration with its unit in quotes, such as "90s" or "4h", not an integer (did you mean "240s"?)`},
		{"CRI-O's guest pull", runc + "runtime_pull_image = true", `3:1: runtimes.runc.runtime_pull_image: unknown key: not supported by berth; images are pulled on the node`},
		{"CRI-O's inheritance", runc + "inherit_default_runtime = true", `3:1: runtimes.runc.inherit_default_runtime: unknown key: set runtime_path on the handler`},
		{"containerd's sandboxer", runc + "sandboxer = \"podsandbox\"", `3:1: runtimes.runc.sandboxer: unknown key: determined by runtime_type`},
		{"import as a table of its own", "[imports]\ncrio = []", `1:2: imports: unknown key: drop-ins are read from conf.d beside this file; list those of containerd in import.containerd`},
		{"wrong key in the imports", "[import]\ncrio_dirs = [\"/etc/crio\"]", `2:1: import.crio_dirs: unknown key; use import.crio (did you mean "import.crio"?)`},
		{"one path to import", "[import]\ncrio = \"/etc/crio/crio.conf.d\"", `2:1: import.crio: must be a list of strings, not a string (did you mean "[\"/etc/crio/crio.conf.d\"]"?)`},
		{"relative import", "[import]\ncontainerd = [\"conf.d\"]", `2:1: import.containerd: "conf.d" must be an absolute path`},
		{"import of an unknown kind", "[import]\ndocker = [\"/etc/docker\"]", `2:1: import.docker: unknown key; expected one of containerd, crio`},
		{"runtime's name", "[server]\nruntime_name = \"CRI-O\"", `2:1: server.runtime_name: "CRI-O" is not a valid runtime name: it is the prefix of container IDs (name://id), so use lower case letters, digits, '-' and '.', and begin with a letter (did you mean "berth"?)`},
		{"runtime's name with a scheme", "[server]\nruntime_name = \"cri-o://\"", `2:1: server.runtime_name: "cri-o://" is not a valid runtime name: it is the prefix of container IDs (name://id), so use lower case letters, digits, '-' and '.', and begin with a letter (did you mean "berth"?)`},
		{"empty runtime's name", "[server]\nruntime_name = \"\"", `2:1: server.runtime_name: "" is not a valid runtime name: it is the prefix of container IDs (name://id), so use lower case letters, digits, '-' and '.', and begin with a letter (did you mean "berth"?)`},
		{"empty prefix of cgroups", "[engine]\ncgroup_prefix = \"\"", `2:1: engine.cgroup_prefix: "" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "berth"?)`},
		{"prefix with a separator of cgroupsPath", "[engine]\ncgroup_prefix = \"a:b\"", `2:1: engine.cgroup_prefix: "a:b" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "a-b"?)`},
		{"prefix of two directories", "[engine]\ncgroup_prefix = \"a/b\"", `2:1: engine.cgroup_prefix: "a/b" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "a-b"?)`},
		{"prefix that is hidden", "[engine]\ncgroup_prefix = \".a\"", `2:1: engine.cgroup_prefix: ".a" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "a"?)`},
		{"prefix with a dot", "[engine]\ncgroup_prefix = \"a.slice\"", `2:1: engine.cgroup_prefix: "a.slice" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "a-slice"?)`},
		{"prefix that ends in a dash", "[engine]\ncgroup_prefix = \"cri-containerd-\"", `2:1: engine.cgroup_prefix: "cri-containerd-" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "cri-containerd"?)`},
		{"prefix that is an option", "[engine]\ncgroup_prefix = \"-a\"", `2:1: engine.cgroup_prefix: "-a" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "a"?)`},
		{"prefix with a space", "[engine]\ncgroup_prefix = \"a b\"", `2:1: engine.cgroup_prefix: "a b" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "a-b"?)`},
		{"long prefix", "[engine]\ncgroup_prefix = \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"", `2:1: engine.cgroup_prefix: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" is not a valid prefix: it becomes a part of the names of cgroups (prefix-id.scope), so use at most 64 letters, digits, '-' and '_', and begin and end with a letter or a digit (did you mean "berth"?)`},
		// Types.
		{"string for number", "[streaming]\nport = \"1234\"", `2:1: streaming.port: must be an integer, not a string (did you mean "1234"?)`},
		{"string for boolean", "[engine]\nunprivileged_icmp = \"true\"", `2:1: engine.unprivileged_icmp: must be true or false, not a string (did you mean "true"?)`},
		{"number for string", "[server]\nsocket_group = 1000", `2:1: server.socket_group: must be a string, not an integer`},
		{"number for mode", "[server]\nsocket_mode = 0o660", `2:1: server.socket_mode: must be a file mode as an octal number in quotes, such as "0660", not an integer`},
		{"string for list", "[cni]\nbin_dirs = \"/opt/cni/bin\"", `2:1: cni.bin_dirs: must be a list of strings, not a string (did you mean "[\"/opt/cni/bin\"]"?)`},
		{"mixed list", "[cni]\nbin_dirs = [\"/a\", 2]", `2:1: cni.bin_dirs: must be a list of strings; element 2 is an integer`},
		{"value for section", "server = 1", `1:1: server: must be a table, not an integer`},
		{"array of tables for section", "[[server]]\nsocket = \"/x\"", `1:3: server: must be a table, not a list`},
		{"value for runtimes", "runtimes = 1", `1:1: runtimes: must be a table, not an integer`},
		{"value for handler", "[runtimes]\nruntime_path = \"/x\"", `2:1: runtimes.runtime_path: must be a handler's table, such as [runtimes.runc], not a string; runtime_path belongs into [runtimes.<handler>]`},
		{"date", "[log]\nlevel = 2020-01-01", `2:1: log.level: must be a string, not a date or time`},
		{"table for string", "[log.level]\na = 1", `1:2: log.level: must be a string, not a table`},
		{"annotation value", runc + "default_annotations = { a = 1 }", `3:25: runtimes.runc.default_annotations.a: must be a string, not an integer`},
		{"string for number with a fraction", "[tracing]\nsample_ratio = \"1\"", `2:1: tracing.sample_ratio: must be a number, not a string`},
		// Syntax.
		{"no value", "[server]\nsocket =\n", `2:9: `},
		{"open string", "[server]\nsocket = \"/x\n", `2:`},
		{"same key twice", "[log]\nlevel = \"info\"\nformat = \"text\"\nlevel = \"warn\"", `4:1: log.level: is already set at line 2; keep one of the two`},
		{"same table twice", runc + "[log]\nlevel = \"info\"\n[runtimes.runc]\nruntime_path = \"/y\"\n", `5:2: runtimes.runc: is already set at line 1; keep one of the two`},
		{"key and table", "[log]\nlevel = \"info\"\n[log.level]\n", `3:`},
		{"bare word", "[log]\nlevel = info", `2:12: is not a valid value; strings need quotes (did you mean "\"info\""?)`},
		{"path without quotes", "[server]\nsocket = /run/berth.sock", `2:10: is not a valid value; strings need quotes (did you mean "\"/run/berth.sock\""?)`},
		{"single equals without key", "= 1", `1:1: `},
		{"unclosed table", "[runtimes.runc\nruntime_path = \"/x\"", `1:`},
		{"unclosed list", "[cni]\nbin_dirs = [\"/a\"", `2:`},
		{"extra comma in an inline table", "log = { level = \"info\", , }", `1:`},
		{"two values on a line", "[log]\nlevel = \"info\" format = \"text\"", `2:`},
		{"YAML", "runtimes:\n  runc:\n", `1:`},
		{"JSON", "{\"runtimes\": {}}", `1:1: `},
		{"deeper than any key", "x." + strings.Repeat("y.", 40) + "z = 1", `1:1: x.y.y: is nested more than 32 levels deep; no valid key is`},
		{"version of a containerd file", "version = 3\n[runtimes.a]\nruntime_path = \"/x\"", `1:1: version: is 3; this berth supports version 1`},
		{"negative version", "version = -1", `1:1: version: is -1; this berth supports version 1`},
		{"huge number", "[streaming]\nport = 99999999999999999999", `2:8: `},
		{"newer version", "version = 2\n[future]\nx = 1", `1:1: version: is 2; this berth supports version 1`},
		{"version's type", "version = \"1\"", `1:1: version: must be an integer, not a string (did you mean "1"?)`},
		// Values.
		{"relative socket", "[server]\nsocket = \"berth.sock\"", `2:1: server.socket: "berth.sock" must be an absolute path`},
		{"long socket", "[server]\nsocket = \"/" + strings.Repeat("x", 107) + "\"", `2:1: server.socket: has 108 bytes; the limit for unix socket paths is 107`},
		{"relative admin socket", "[server]\nadmin_socket = \"admin.sock\"", `2:1: server.admin_socket: "admin.sock" must be an absolute path`},
		{"long admin socket", "[server]\nadmin_socket = \"/" + strings.Repeat("x", 107) + "\"", `2:1: server.admin_socket: has 108 bytes; the limit for unix socket paths is 107`},
		{"one socket for two APIs", "[server]\nadmin_socket = \"/run/berth/berth.sock\"", `2:1: server.admin_socket: is the same as server.socket; the management API needs a separate socket`},
		{"bad group", "[server]\nsocket_group = \"no-such-group\"", `2:1: server.socket_group: group "no-such-group" does not exist on this machine`},
		{"bad mode", "[server]\nsocket_mode = \"rw\"", `2:1: server.socket_mode: "rw" is not a file mode; write a file mode as an octal number in quotes, such as "0660"`},
		{"useless mode", "[server]\nsocket_mode = \"0060\"", `2:1: server.socket_mode: 0060 denies the owner access; use at least 0600 (did you mean "0660"?)`},
		{"same directories", "[engine]\nroot = \"/x\"\nstate = \"/x/\"", `3:1: engine.state: must differ from engine.root: a reboot empties engine.state, while engine.root must persist`},
		{"bad driver", "[engine]\ncgroup_driver = \"sytemd\"", `2:1: engine.cgroup_driver: "sytemd" must be "auto", "cgroupfs" or "systemd" (did you mean "systemd"?)`},
		{"bad supervision", "[engine]\nsupervision = \"node\"", `2:1: engine.supervision: "node" must be "handler" or "pod"`},
		{"bad snapshotter", "[engine]\nsnapshotter = \"overlay\"", `2:1: engine.snapshotter: "overlay" must be "overlayfs", "erofs" or "native" (did you mean "overlayfs"?)`},
		{"zero line size", "[engine]\nmax_log_line_size = 0", `2:1: engine.max_log_line_size: must be a number of bytes, or -1 for no limit`},
		{"missing helper", "[engine]\nshim_path = \"/no/berth-shim\"", `2:1: engine.shim_path: /no/berth-shim does not exist; install it, or correct the path`},
		{"negative duration", "[registry]\npull_progress_timeout = \"-1s\"", `2:1: registry.pull_progress_timeout: must not be negative`},
		{"bad duration", "[streaming]\nidle_timeout = \"4 hours\"", `2:1: streaming.idle_timeout: "4 hours" is not a duration; write a duration with its unit in quotes, such as "90s" or "4h"`},
		{"missing profile", "[engine]\ndefault_seccomp_profile = \"/no/profile.json\"", `2:1: engine.default_seccomp_profile: /no/profile.json does not exist`},
		{"relative directory", "[engine]\ncdi_spec_dirs = [\"/etc/cdi\", \"cdi\"]", `2:1: engine.cdi_spec_dirs: "cdi" must be an absolute path`},
		{"no directory of plugins", "[cni]\nbin_dirs = []", `2:1: cni.bin_dirs: must name at least one directory`},
		{"negative count", "[cni]\nmax_conf_num = -1", `2:1: cni.max_conf_num: must be 1 or more, or 0 for all`},
		{"berth's own mount option", "[engine]\noverlay_mount_options = [\"metacopy=on\", \"upperdir=/x\"]", `2:1: engine.overlay_mount_options: upperdir is set on every mount by berth`},
		{"volatile", "[engine]\noverlay_mount_options = [\"volatile\"]", `2:1: engine.overlay_mount_options: volatile is the default; sync_rootfs = true removes it`},
		{"mount options in one string", "[engine]\noverlay_mount_options = [\"a,b\"]", `2:1: engine.overlay_mount_options: "a,b" is not a valid mount option; write each as a separate string`},
		{"empty image name", "[registry]\npinned_images = [\"\"]", `2:1: registry.pinned_images: "" is not a valid image name`},
		{"bad name of a checkpoint image", "[registry]\ncheckpoint_images = [\"a b\"]", `2:1: registry.checkpoint_images: "a b" is not a valid image name`},
		{"zero downloads", "[registry]\nmax_concurrent_downloads = 0", `2:1: registry.max_concurrent_downloads: must be 1 or more`},
		{"zero timeout of verifiers", "[image_verifier]\nper_verifier_timeout = \"0s\"", `2:1: image_verifier.per_verifier_timeout: must be more than 0`},
		{"relative verifiers", "[image_verifier]\nbin_dir = \"bin\"", `2:1: image_verifier.bin_dir: "bin" must be an absolute path`},
		{"host name", "[streaming]\naddress = \"localhost\"", `2:1: streaming.address: "localhost" is not an IP address (did you mean "127.0.0.1"?)`},
		{"unspecified address", "[streaming]\naddress = \"0.0.0.0\"", `2:1: streaming.address: 0.0.0.0 cannot be reached by the kubelet, and would open the port to the network (did you mean "127.0.0.1"?)`},
		{"relative nri socket", "[nri]\nsocket_path = \"nri.sock\"", `2:1: nri.socket_path: "nri.sock" must be an absolute path`},
		{"relative socket for agents", "[containerd_api]\nsocket = \"containerd.sock\"", `2:1: containerd_api.socket: "containerd.sock" must be an absolute path`},
		{"the CRI's socket for agents", "[containerd_api]\nsocket = \"/run/berth/berth.sock\"", `2:1: containerd_api.socket: is the same as server.socket; agents need a separate socket`},
		{"the management socket for agents", "[containerd_api]\nsocket = \"/run/berth/admin.sock\"", `2:1: containerd_api.socket: is the socket of the management API; agents need a separate socket`},
		{"the CRI's socket for agents, by another path", "[containerd_api]\nsocket = \"/run/x/../berth/berth.sock\"", `2:1: containerd_api.socket: is the same as server.socket; agents need a separate socket`},
		{"the shims' socket for agents", "[containerd_api]\nsocket = \"/s/containerd.sock\"\n[engine]\nstate = \"/s/\"", `2:1: containerd_api.socket: is the socket of shims in engine.state; agents need a separate socket`},
		{"long socket for agents", "[containerd_api]\nsocket = \"/" + strings.Repeat("x", 107) + "\"", `2:1: containerd_api.socket: has 108 bytes; the limit for unix socket paths is 107`},
		{"the CRI's socket for NRI", "[nri]\nsocket_path = \"/run/berth/berth.sock\"", `2:1: nri.socket_path: is the same as server.socket; plugins need a separate socket`},
		{"long nri socket", "[nri]\nsocket_path = \"/" + strings.Repeat("x", 107) + "\"", `2:1: nri.socket_path: has 108 bytes; the limit for unix socket paths is 107`},
		{"relative file of labels", "[node_labels]\nfile = \"features.d/berth\"", `2:1: node_labels.file: "features.d/berth" must be an absolute path`},
		{"hidden file of labels", "[node_labels]\nfile = \"/etc/features.d/.berth\"", `2:1: node_labels.file: Node Feature Discovery does not read ".berth", because its name begins with a dot`},
		{"directory for labels", "[node_labels]\nfile = \"/etc/features.d/\"", `2:1: node_labels.file: "/etc/features.d/" is a directory; it must be the path of a file (did you mean "/etc/features.d/berth"?)`},
		{"short lifetime of labels", "[node_labels]\nlifetime = \"5s\"", `2:1: node_labels.lifetime: must be "10s" or more`},
		{"zero timeout of plugins", "[nri]\nplugin_request_timeout = \"0s\"", `2:1: nri.plugin_request_timeout: must be more than 0`},
		{"bad port", "[streaming]\nport = 65536", `2:1: streaming.port: must be a port from 1 to 65535, or 0 to let the kernel choose`},
		{"remote host with a port", "[streaming]\npermitted_remote_hosts = [\"vm.example\", \"::1\", \"vm:1\"]", `2:1: streaming.permitted_remote_hosts: "vm:1" is neither a host name nor an IP address; write it without a port`},
		{"zero idle timeout", "[streaming]\nidle_timeout = \"0s\"", `2:1: streaming.idle_timeout: must be more than 0`},
		{"metrics without port", "[metrics]\naddress = \"127.0.0.1\"", `2:1: metrics.address: "127.0.0.1" must be host:port, such as "127.0.0.1:9091", or unix:///path; leave it empty to disable metrics`},
		{"metrics on a relative socket", "[metrics]\naddress = \"unix://m.sock\"", `2:1: metrics.address: "unix://m.sock" must be unix:// and an absolute path of at most 107 bytes`},
		{"endpoint as URL", "[tracing]\nendpoint = \"http://127.0.0.1:4317/\"", `2:1: tracing.endpoint: "http://127.0.0.1:4317/" must be host:port without a scheme; tracing.insecure selects whether TLS is used (did you mean "127.0.0.1:4317"?)`},
		{"endpoint without port", "[tracing]\nendpoint = \"collector\"", `2:1: tracing.endpoint: "collector" must be host:port, such as "127.0.0.1:4317"; leave it empty to disable tracing`},
		{"ratio", "[tracing]\nsample_ratio = 1.5", `2:1: tracing.sample_ratio: must be from 0 to 1`},
		{"ratio that is not a number", "[tracing]\nsample_ratio = nan", `2:1: tracing.sample_ratio: must be from 0 to 1`},
		{"bad level", "[log]\nlevel = \"warning\"", `2:1: log.level: "warning" must be "trace", "debug", "info", "warn" or "error"`},
		{"bad format", "[log]\nformat = \"JSON\"", `2:1: log.format: "JSON" must be "text" or "json" (did you mean "json"?)`},
		{"unknown default", "default_runtime = \"runk\"\n" + runc, `1:1: default_runtime: handler "runk" does not exist; the handlers are runc`},
		{"no default", "[runtimes.a]\nruntime_path = \"$BIN/runc\"\n[runtimes.b]\nruntime_path = \"$BIN/runc\"", `1:1: default_runtime: is missing; name one of the handlers a, b, above the first table`},
		// Handlers.
		{"nameless", "[runtimes.\"\"]\nruntime_path = \"$BIN/runc\"", `1:2: runtimes."": a handler name is missing`},
		{"long name", "[runtimes." + strings.Repeat("x", 64) + "]\nruntime_path = \"$BIN/runc\"", `1:2: runtimes.` + strings.Repeat("x", 64) + `: handler name "` + strings.Repeat("x", 63) + `…" has 64 characters; a RuntimeClass can name at most 63`},
		{"capital", "[runtimes.Kata]\nruntime_path = \"$BIN/runc\"", `1:2: runtimes.Kata: handler name "Kata" is not a DNS-1123 label, so no RuntimeClass can name it: use lower case letters, digits and '-', and begin and end with a letter or digit (did you mean "kata"?)`},
		{"bad name", "[runtimes.kata_qemu]\nruntime_path = \"$BIN/runc\"", `1:2: runtimes.kata_qemu: handler name "kata_qemu" is not a DNS-1123 label, so no RuntimeClass can name it: use lower case letters, digits and '-', and begin and end with a letter or digit (did you mean "kata-qemu"?)`},
		{"dotted name", "[runtimes.\"runc.v2\"]\nruntime_path = \"$BIN/runc\"", `1:2: runtimes."runc.v2": handler name "runc.v2" is not a DNS-1123 label, so no RuntimeClass can name it: use lower case letters, digits and '-', and begin and end with a letter or digit (did you mean "runc-v2"?)`},
		{"path with a typo", "[runtimes.a]\nruntime_pth = \"$BIN/runc\"", `2:1: runtimes.a.runtime_pth: unknown key (did you mean "runtime_path"?)`},
		{"no path", "[runtimes.a]\nsnapshotter = \"native\"", `1:2: runtimes.a: runtime_path is missing; set it to the absolute path of the runtime's binary`},
		{"empty path", "[runtimes.a]\nruntime_path = \"\"", `2:1: runtimes.a.runtime_path: must not be empty; set it to the absolute path of the runtime's binary`},
		{"relative path", "[runtimes.a]\nruntime_path = \"no-such-runtime\"", `2:1: runtimes.a.runtime_path: "no-such-runtime" must be an absolute path`},
		{"missing binary", "[runtimes.a]\nruntime_path = \"$BIN/gone\"", `2:1: runtimes.a.runtime_path: $DIR/bin/gone does not exist; install it, or correct the path`},
		{"not executable", "[runtimes.a]\nruntime_path = \"$BIN/plain\"", `2:1: runtimes.a.runtime_path: $DIR/bin/plain is not executable; run chmod 0755 on it`},
		{"world-writable", "[runtimes.a]\nruntime_path = \"$BIN/open\"", `2:1: runtimes.a.runtime_path: $DIR/bin/open can be changed by every user (owner 0, mode 0777), which would be run as root; run chmod o-w $DIR/bin/open`},
		{"directory", "[runtimes.a]\nruntime_path = \"$BIN\"", `2:1: runtimes.a.runtime_path: $DIR/bin is a directory, not a file`},
		{"path through a file", "[runtimes.a]\nruntime_path = \"$BIN/runc/runc\"", `2:1: runtimes.a.runtime_path: $DIR/bin/runc/runc cannot be read: not a directory`},
		{"shim as oci", "[runtimes.a]\nruntime_type = \"oci\"\nruntime_path = \"$BIN/containerd-shim-kata-v2\"", `2:1: runtimes.a.runtime_type: containerd-shim-kata-v2 is a shim, not an OCI runtime (did you mean "shim"?)`},
		{"oci as shim", runc + `runtime_type = "shim"`, `3:1: runtimes.runc.runtime_type: runc is an OCI runtime, not a shim (did you mean "oci"?)`},
		{"unknown type", runc + `runtime_type = "ocj"`, `3:1: runtimes.runc.runtime_type: "ocj" must be "oci", "shim" or "cri" (did you mean "oci"?)`},
		{"empty type", runc + `runtime_type = ""`, `3:1: runtimes.runc.runtime_type: "" must be "oci", "shim" or "cri"`},
		{"relative root", runc + `runtime_root = "run"`, `3:1: runtimes.runc.runtime_root: "run" must be an absolute path`},
		{"config file for runc", runc + `runtime_config_path = "/etc/passwd"`, `3:1: runtimes.runc.runtime_config_path: runc does not read a configuration file; this key is for shims and runsc`},
		{"missing config", "[runtimes.a]\nruntime_path = \"$BIN/runsc\"\nruntime_config_path = \"/no/runsc.toml\"", `3:1: runtimes.a.runtime_config_path: /no/runsc.toml does not exist`},
		{"config file for the runc shim", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\nruntime_config_path = \"/etc/passwd\"", `3:1: runtimes.a.runtime_config_path: containerd-shim-runc-v2 does not read a configuration file; its settings are [runtimes.a.options]`},
		{"pattern", runc + `pod_annotations = ["a", "b[", "c"]`, `3:1: runtimes.runc.pod_annotations: "b[" is not a pattern; write a name with *, ? and [a-z], such as "com.example.*"`},
		{"empty pattern", runc + `container_annotations = [""]`, `3:1: runtimes.runc.container_annotations: "" is not a pattern; write a name with *, ? and [a-z], such as "com.example.*"`},
		{"nameless annotation", runc + `default_annotations = { "" = "x" }`, `3:1: runtimes.runc.default_annotations: an annotation needs a name`},
		{"snapshotter without a table", "[snapshotters]\nstargz = \"/run/s.sock\"", `2:1: snapshotters.stargz: must be a table, not a string`},
		{"snapshotter without an address", "[snapshotters.stargz]", `1:2: snapshotters.stargz: address is missing; set it to the path of the snapshotter's socket`},
		{"snapshotter at a relative address", "[snapshotters.stargz]\naddress = \"s.sock\"", `2:1: snapshotters.stargz.address: "s.sock" must be the absolute path of a unix socket`},
		{"snapshotter with berth's name", "[snapshotters.erofs]\naddress = \"/run/s.sock\"", `1:2: snapshotters.erofs: "erofs" is built into berth; give this snapshotter another name`},
		{"snapshotter with a name that is a path", "[snapshotters.\"../a\"]\naddress = \"/run/s.sock\"", `1:2: snapshotters."../a": a snapshotter's name must have lower case letters, digits, '.', '_' and '-' only, at most 63`},
		{"unknown key of a snapshotter", "[snapshotters.stargz]\naddress = \"/run/s.sock\"\ntype = \"snapshot\"", `3:1: snapshotters.stargz.type: unknown key; expected one of address`},
		{"handler's snapshotter that has no table", "[snapshotters.stargz]\naddress = \"/run/s.sock\"\n" + runc + `snapshotter = "nydus"`, `5:1: runtimes.runc.snapshotter: "nydus" must be "overlayfs", "erofs", "native" or "stargz"`},
		{"handler's platform", runc + `platform = "linux/arm64"`, `3:1: runtimes.runc.platform: "linux/arm64" must be "wasi/wasm", or absent for images of this node's platform`},
		{"handler's platform by another name", runc + `platform = "wasip1/wasm32"`, `3:1: runtimes.runc.platform: "wasip1/wasm32" must be "wasi/wasm", or absent for images of this node's platform (did you mean "wasi/wasm"?)`},
		{"handler's snapshotter", runc + `snapshotter = "zfs"`, `3:1: runtimes.runc.snapshotter: "zfs" must be "overlayfs", "erofs" or "native"`},
		{"missing spec", runc + `base_runtime_spec = "/no/spec.json"`, `3:1: runtimes.runc.base_runtime_spec: /no/spec.json does not exist`},
		{"spec that is not JSON", runc + `base_runtime_spec = "$BIN/runc"`, `3:1: runtimes.runc.base_runtime_spec: $DIR/bin/runc is not an OCI runtime spec: invalid character '#' looking for beginning of value`},
		{"spec without version", runc + `base_runtime_spec = "$BIN/empty.json"`, `3:1: runtimes.runc.base_runtime_spec: $DIR/bin/empty.json is not an OCI runtime spec: ociVersion is missing`},
		{"relative network", runc + `cni_conf_dir = "net.d"`, `3:1: runtimes.runc.cni_conf_dir: "net.d" must be an absolute path`},
		{"zero timeout", runc + `container_create_timeout = "0s"`, `3:1: runtimes.runc.container_create_timeout: must be more than 0`},
		{"sandbox process", runc + `sandbox_process = "never"`, `3:1: runtimes.runc.sandbox_process: "never" must be "auto" or "always"`},
		{"supervision of a shim", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-kata-v2\"\nsupervision = \"pod\"", `3:1: runtimes.a.supervision: is for oci handlers only; a shim supervises itself`},
		// Aliases.
		{"alias of itself", "[runtimes.a]\nalias_of = \"a\"\n" + runc, `2:1: runtimes.a.alias_of: must be another handler, not a itself`},
		{"alias of nothing", "[runtimes.a]\nalias_of = \"\"\n" + runc, `2:1: runtimes.a.alias_of: must name the handler that a is an alias of`},
		{"alias of an unknown handler", "[runtimes.a]\nalias_of = \"rnuc\"\n" + runc, `2:1: runtimes.a.alias_of: handler "rnuc" does not exist; the handlers are runc`},
		{"alias of an alias", "[runtimes.a]\nalias_of = \"b\"\n[runtimes.b]\nalias_of = \"runc\"\n" + runc, `2:1: runtimes.a.alias_of: "b" is itself an alias; use the handler that it points to (did you mean "runc"?)`},
		{"alias with a binary", "[runtimes.a]\nalias_of = \"runc\"\nruntime_path = \"$BIN/runc\"\n" + runc, `3:1: runtimes.a.runtime_path: cannot be combined with alias_of, which takes all settings from the other handler; remove one of the two`},
		{"alias of a number", "[runtimes.a]\nalias_of = 1\n" + runc, `2:1: runtimes.a.alias_of: must be a string, not an integer`},
		// A rollout.
		{"rollout of nothing", runc + `candidate = { percent = 10 }`, `3:1: runtimes.runc.candidate: needs runtime_path, the absolute path of the candidate binary`},
		{"rollout without a share", runc + `candidate = { runtime_path = "/opt/runc" }`, `3:1: runtimes.runc.candidate: needs percent, the share of new pods that run on the candidate`},
		{"rollout of more than 100 percent", runc + `candidate = { runtime_path = "/opt/runc", percent = 101 }`, `3:43: runtimes.runc.candidate.percent: must be from 0 to 100`},
		{"rollout of the same binary", runc + `candidate = { runtime_path = "$BIN/runc", percent = 1 }`, `3:15: runtimes.runc.candidate.runtime_path: is the handler's own runtime_path; set it to the candidate binary, or remove candidate`},
		{"rollout of a shim", runc + `candidate = { runtime_path = "/opt/containerd-shim-kata-v2", percent = 1 }`, `3:15: runtimes.runc.candidate.runtime_path: containerd-shim-kata-v2 does not match the handler's runtime_type, "oci"`},
		// Limits.
		{"negative pods", runc + `max_pods = -1`, `3:1: runtimes.runc.max_pods: must not be negative; 0 means unlimited`},
		{"negative starts", runc + `max_parallel_starts = -4`, `3:1: runtimes.runc.max_parallel_starts: must not be negative; 0 means unlimited`},
		{"negative queue", runc + `max_queued_starts = -4`, `3:1: runtimes.runc.max_queued_starts: must not be negative; 0 means that no start may wait`},
		{"queue without max_parallel_starts", runc + `max_queued_starts = 4`, `3:1: runtimes.runc.max_queued_starts: has no effect without max_parallel_starts; set that too`},
		{"negative start timeout", runc + `start_timeout = "-1s"`, `3:1: runtimes.runc.start_timeout: must not be negative; "0s" means unlimited`},
		// Options.
		{"option of an oci runtime", runc + `options = { no_pivot = true }`, `3:13: runtimes.runc.options.no_pivot: unknown key (did you mean "no_pivot_root"?)`},
		{"type of an option", runc + `options = { no_pivot_root = 1 }`, `3:13: runtimes.runc.options.no_pivot_root: must be true or false, not an integer`},
		{"flag without dash", runc + `options = { global_flags = ["debug"] }`, `3:13: runtimes.runc.options.global_flags: "debug" is not a flag; it must begin with -`},
		{"flag that berth sets", runc + `options = { global_flags = ["--debug", "--root=/x"] }`, `3:13: runtimes.runc.options.global_flags: --root=/x is set by berth; use runtime_root (did you mean "runtime_root"?)`},
		{"log flag", runc + `options = { global_flags = ["--log", "/x"] }`, `3:13: runtimes.runc.options.global_flags: --log is set by berth: berth reads the runtime's log`},
		{"flag of dashes only", runc + `options = { global_flags = ["--"] }`, `3:13: runtimes.runc.options.global_flags: "--" is not a flag`},
		{"option of the runc shim", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\n[runtimes.a.options]\nBinaryNam = \"/x\"", `4:1: runtimes.a.options.BinaryNam: unknown key (did you mean "BinaryName"?)`},
		{"snake case for the runc shim", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\n[runtimes.a.options]\nsystemd_cgroup = true", `4:1: runtimes.a.options.systemd_cgroup: unknown key (did you mean "SystemdCgroup"?)`},
		{"type for the runc shim", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\n[runtimes.a.options]\nIoUid = -1", `4:1: runtimes.a.options.IoUid: must be a number from 0 to 4294967295`},
		{"relative binary", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\n[runtimes.a.options]\nBinaryName = \"no-such-runtime\"", `4:1: runtimes.a.options.BinaryName: "no-such-runtime" must be an absolute path, so that pods keep their binary`},
		{"world-writable BinaryName", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\n[runtimes.a.options]\nBinaryName = \"$BIN/open\"", `4:1: runtimes.a.options.BinaryName: $DIR/bin/open can be changed by every user (owner 0, mode 0777), which would be run as root; run chmod o-w $DIR/bin/open`},
		{"two roots", "[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\nruntime_root = \"/a\"\n[runtimes.a.options]\nRoot = \"/b\"", `5:1: runtimes.a.options.Root: conflicts with runtime_root, which is "/a"; keep one of the two`},
		{"two drivers", "[engine]\ncgroup_driver = \"cgroupfs\"\n[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\n[runtimes.a.options]\nSystemdCgroup = true", `6:1: runtimes.a.options.SystemdCgroup: conflicts with engine.cgroup_driver, which is "cgroupfs"; remove SystemdCgroup`},
		{"two drivers, the other way around", "[engine]\ncgroup_driver = \"systemd\"\n[runtimes.a]\nruntime_path = \"$BIN/containerd-shim-runc-v2\"\n[runtimes.a.options]\nSystemdCgroup = false", `6:1: runtimes.a.options.SystemdCgroup: conflicts with engine.cgroup_driver, which is "systemd"; remove SystemdCgroup`},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "runc", "runsc", "containerd-shim-kata-v2", "containerd-shim-runc-v2")
			n.binary("bin/plain", 0o644)
			n.binary("bin/open", 0o777)
			n.raw("bin/empty.json", "{}", 0o644)
			n.write("config.toml", c.toml)
			var got []string
			if cfg, err := Load(n.options()); err == nil {
				got = n.lacks(cfg)
			} else {
				got = n.refuse(n.options())
			}
			want := "$DIR/config.toml:" + c.want
			// If want ends in a colon or space, got continues with a text of go-toml, which may change.
			exact := !strings.HasSuffix(c.want, " ") && !strings.HasSuffix(c.want, ":")
			if len(got) != 1 || exact && got[0] != want || !strings.HasPrefix(got[0], want) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), want)
			}
		})
	}
}

func TestAllMistakesAreReportedTogether(t *testing.T) {
	n := newNode(t, "runc")
	n.write("config.toml", `version = 1
default_runtime = "kata"

[sever]
socket = "/x"

[streaming]
port = "x"
port = 5
adress = "127.0.0.1"

[runtimes.runc]
runtime_path = "$BIN/runk"
snapshoter = "native"

[runtimes.runc]
runtime_path = "$BIN/runc"
`)
	n.write("conf.d/10-gvisor.toml", "[runtimes.gvisor]\nruntime_path = 1\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
	n.write("conf.d/20-syntax.toml", "[runtimes.kata]\nruntime_path = \n[runtimes.later]\n")
	got := strings.Join(n.refuse(n.options()), "\n")
	want := strings.TrimSpace(`
$DIR/conf.d/10-gvisor.toml:2:1: runtimes.gvisor.runtime_path: must be a string, not an integer
$DIR/conf.d/10-gvisor.toml:3:2: runtimes.runc: handler "runc" is already configured at $DIR/config.toml:12; keep one of the two
$DIR/conf.d/20-syntax.toml:2:16: unexpected character U+000A at start of value
$DIR/config.toml:4:2: sever: unknown key (did you mean "server"?)
$DIR/config.toml:8:1: streaming.port: must be an integer, not a string
$DIR/config.toml:9:1: streaming.port: is already set at line 8; keep one of the two
$DIR/config.toml:10:1: streaming.adress: unknown key (did you mean "address"?)
$DIR/config.toml:14:1: runtimes.runc.snapshoter: unknown key (did you mean "snapshotter"?)
$DIR/config.toml:16:2: runtimes.runc: is already set at line 12; keep one of the two`)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestDuplicateTableDoesNotHideWhatFollows(t *testing.T) {
	n := newNode(t)
	n.write("config.toml", "[log]\nlevel = \"info\"\n[log]\nlevel = \"warn\"\nformat = \n[cni]\n")
	got := n.refuse(n.options())
	if len(got) != 2 || !strings.HasPrefix(got[0], "$DIR/config.toml:3:2: log: is already set") || !strings.HasPrefix(got[1], "$DIR/config.toml:5:") {
		t.Errorf("got %s", strings.Join(got, "\n"))
	}
}
