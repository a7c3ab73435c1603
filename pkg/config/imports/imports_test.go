package imports

import (
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// inBin finds every program in one directory.
func inBin(program string) string { return "/bin/" + program }

type tables = map[string]any

func crioFile(name string, handlers tables) *tomlfile.Document {
	return &tomlfile.Document{File: name, Values: tables{"crio": tables{"runtime": tables{"runtimes": handlers}}}}
}

func containerdFile(name, plugin string, handlers tables) *tomlfile.Document {
	return &tomlfile.Document{File: name, Values: tables{"plugins": tables{plugin: tables{"containerd": tables{"runtimes": handlers}}}}}
}

// TestTwoFilesWithOneHandler: CRI-O uses the later table; containerd 2 merges
// both tables key by key, whatever version the files have.
func TestTwoFilesWithOneHandler(t *testing.T) {
	handlers, notes := Translate(CRIO, []*tomlfile.Document{
		crioFile("1", tables{"a": tables{"runtime_path": "/one", "runtime_root": "/run/one"}}),
		crioFile("2", tables{"a": tables{"runtime_path": "/two"}}),
	}, inBin)
	if want := (tables{"runtime_path": "/two", "runtime_type": "oci"}); len(handlers) != 1 || !reflect.DeepEqual(handlers[0].Values, want) {
		t.Errorf("CRI-O's handlers are %+v", handlers)
	}
	if len(notes) != 1 || notes[0].Origin.File != "1" || !strings.Contains(notes[0].Why, "2 is read later") {
		t.Errorf("notes are %+v", notes)
	}

	handlers, _ = Translate(Containerd, []*tomlfile.Document{
		containerdFile("1", "cri", tables{"a": tables{"cni_conf_dir": "/net", "options": tables{"BinaryName": "one", "Root": "/run/one"}}}),
		containerdFile("2", "io.containerd.cri.v1.runtime", tables{"a": tables{"runtime_type": "io.containerd.runc.v2", "options": tables{"BinaryName": "two"}}}),
	}, inBin)
	want := tables{"runtime_path": "/bin/two", "runtime_type": "oci", "runtime_root": "/run/one", "cni_conf_dir": "/net"}
	if len(handlers) != 1 || !reflect.DeepEqual(handlers[0].Values, want) {
		t.Errorf("containerd's handlers are %+v", handlers)
	}
	from := handlers[0].From
	if from["runtime_path"].File != "2" || from["runtime_root"].File != "1" || from["cni_conf_dir"].File != "1" {
		t.Errorf("keys are from %+v", from)
	}
}

func TestShimProgram(t *testing.T) {
	for kind, want := range map[string]string{
		"io.containerd.kata.v2": "containerd-shim-kata-v2", "io.containerd.kata-qemu.v2": "containerd-shim-kata-qemu-v2",
		"io.containerd.runsc.v1": "containerd-shim-runsc-v1", "a.b": "containerd-shim-a-b",
		"": "", "kata": "", ".kata": "", "bin/a.b": "",
	} {
		test.Equal(t, fmt.Sprintf("%q", kind), shimProgram(kind), want)
	}
}

func TestKindOf(t *testing.T) {
	for want, values := range map[Kind]tables{
		CRIO: {"crio": tables{}, "plugins": tables{}}, Containerd: {"plugins": tables{}, "version": int64(2)}, "": {"crio": 1, "plugins": 2},
	} {
		if got, known := KindOf(values); got != want || known != (want != "") {
			t.Errorf("%v is %q, want %q", values, got, want)
		}
	}
}

// TestVolumesOfImages: if the other daemon ignores volumes of images, a note recommends the
// same setting of berth.
func TestVolumesOfImages(t *testing.T) {
	crio := func(value string) []Note {
		_, notes := Translate(CRIO, []*tomlfile.Document{{File: "f", Values: tables{"crio": tables{"image": tables{"image_volumes": value}}}}}, inBin)
		return notes
	}
	told := func(notes []Note) bool {
		for _, n := range notes {
			if strings.HasPrefix(n.Do, "set engine.ignore_image_defined_volumes") {
				return true
			}
		}
		return false
	}
	if !told(crio("ignore")) || told(crio("mkdir")) || told(crio("bind")) {
		t.Errorf("the notes on CRI-O's ignore, mkdir and bind are %+v, %+v, %+v", crio("ignore"), crio("mkdir"), crio("bind"))
	}
	_, containerd := Translate(Containerd, []*tomlfile.Document{{File: "f", Values: tables{"plugins": tables{
		"io.containerd.cri.v1.runtime": tables{"ignore_image_defined_volumes": true},
	}}}}, inBin)
	if !told(containerd) {
		t.Errorf("the notes on containerd are %+v", containerd)
	}
}

// TestImagePlatforms translates the platform that containerd's image plugin sets for a
// handler. The later of two files wins.
func TestImagePlatforms(t *testing.T) {
	node := runtime.GOOS + "/" + runtime.GOARCH
	file := func(platforms ...any) []*tomlfile.Document {
		files := []*tomlfile.Document{containerdFile("0", "io.containerd.cri.v1.runtime", tables{"a": tables{"runtime_type": "io.containerd.spin.v2"}})}
		for i, p := range platforms {
			files = append(files, &tomlfile.Document{File: strconv.Itoa(i + 1), Values: tables{"plugins": tables{imagesPlugin: tables{"runtime_platforms": tables{"a": tables{"platform": p}}}}}})
		}
		return files
	}
	for name, tc := range map[string]struct {
		files []*tomlfile.Document
		want  any
		from  string
		notes int
	}{
		"none":                  {file(), nil, "", 0},
		"wasm":                  {file("wasi/wasm"), "wasi/wasm", "1", 0},
		"wasm in capitals":      {file("WASI/Wasm"), "wasi/wasm", "1", 0},
		"the node's":            {file(node), nil, "", 0},
		"the node's after wasm": {file("wasi/wasm", node), nil, "", 0},
		"wasm after the node's": {file(node, "wasi/wasm"), "wasi/wasm", "2", 0},
		"unsupported platform":  {file("windows/wasm"), nil, "", 1},
		"not a string":          {file(int64(1)), nil, "", 1},
	} {
		handlers, notes := Translate(Containerd, tc.files, inBin)
		if len(handlers) != 1 || handlers[0].Values["platform"] != tc.want || handlers[0].From["platform"].File != tc.from || len(notes) != tc.notes {
			t.Errorf("%s: %+v, %+v", name, handlers, notes)
		}
	}
	_, nobody := Translate(Containerd, []*tomlfile.Document{{File: "1", Values: tables{"plugins": tables{imagesPlugin: tables{"runtime_platforms": tables{"b": tables{"platform": "wasi/wasm"}}}}}}}, inBin)
	if len(nobody) != 1 || !strings.Contains(nobody[0].Why, "no file has") {
		t.Errorf("the notes on a handler that does not exist are %+v", nobody)
	}
}

// TestRegistriesOfContainerd: each of the mirrors, credentials and certificates has its own
// note with what to do, and no note contains a secret.
func TestRegistriesOfContainerd(t *testing.T) {
	registry := tables{
		"config_path": "/etc/containerd/certs.d",
		"mirrors":     tables{"docker.io": tables{"endpoint": []any{"https://user:secret@mirror.example"}}, "*": tables{"endpoint": []any{"https://all.example"}}},
		"configs": tables{"reg.example:5000": tables{
			"auth": tables{"username": "user", "password": "secret", "identitytoken": "secret"},
			"tls":  tables{"ca_file": "/etc/ca.pem", "insecure_skip_verify": true},
		}},
		"auths":   tables{"https://old.example": tables{"auth": "secret"}},
		"headers": tables{"X-Token": []any{"secret"}},
	}
	want := map[string]string{
		`config_path`: "registry.hosts_dir", `mirrors."docker.io"`: "[host.", `mirrors."*"`: "_default/hosts.toml",
		`configs."reg.example:5000".auth`: "imagePullSecrets", `configs."reg.example:5000".tls`: "skip_verify",
		`auths."https://old.example"`: "imagePullSecrets", `headers.X-Token`: "header",
	}
	for _, plugin := range []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images"} {
		_, notes := Translate(Containerd, []*tomlfile.Document{{File: "1", Values: tables{"plugins": tables{plugin: tables{"registry": registry}}}}}, inBin)
		if len(notes) != len(want) {
			t.Errorf("%s: %d notes, want %d", plugin, len(notes), len(want))
		}
		for _, n := range notes {
			_, key, _ := strings.Cut(n.Key, ".registry.")
			if advice := want[key]; advice == "" || !strings.Contains(n.Do, advice) {
				t.Errorf("%s: the note on %v is %q, %q", plugin, n.Key, n.Why, n.Do)
			}
			if strings.Contains(n.Why+n.Do+n.Key, "secret") {
				t.Errorf("%s: a note has the secret: %+v", plugin, n)
			}
		}
	}
}
