package configuration

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestConfigImport(t *testing.T) {
	dir, _ := written(t, "")
	file := filepath.Join(dir, "crio.d", "99-nvidia.toml")
	test.Must(t, os.Mkdir(filepath.Dir(file), 0o755))
	text := "[crio.runtime]\ndefault_runtime = \"nvidia\"\n[crio.runtime.runtimes.nvidia]\nruntime_path = \"" + filepath.Join(dir, "runc") + "\"\n"
	test.Must(t, os.WriteFile(file, []byte(text), 0o600))
	code, stdout, stderr := executed(t, ConfigCommand(), "import", file)
	test.Equal(t, "the exit status", code, 0)
	if want := "# from " + file + ":3\n[runtimes.nvidia]\nruntime_path = '" + filepath.Join(dir, "runc") + "'\nruntime_type = 'oci'\n"; stdout != want {
		t.Errorf("got\n%s\nwant\n%s", stdout, want)
	}
	if !strings.HasPrefix(stderr, "note: "+file+":2:1: crio.runtime.default_runtime: ") {
		t.Errorf("the report is %s", stderr)
	}

	// A handler that cannot be served is still translated.
	test.Must(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, dir, "/nowhere")), 0o600))
	code, stdout, stderr = executed(t, ConfigCommand(), "import", filepath.Dir(file))
	if code != commandline.Degraded || !strings.Contains(stdout, "/nowhere/runc") || !strings.Contains(stderr, "/nowhere/runc does not exist") {
		t.Errorf("exit status %d: %s\n%s", code, stdout, stderr)
	}
	// The exit status of a mistake has priority over that of such a handler.
	test.Must(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, dir, "/nowhere")+"[crio.runtime.runtimes.odd]\nruntime_path = 1\n"), 0o600))
	if code, _, _ := executed(t, ConfigCommand(), "import", file); code != commandline.Mistaken {
		t.Errorf("exit status %d of a mistake", code)
	}
	if code, _, _ := executed(t, ConfigCommand(), "import", filepath.Join(dir, "absent")); code != commandline.Mistaken {
		t.Errorf("exit status %d of a file that does not exist", code)
	}
}

// TestCheckOfImports: a note does not change the exit status, and a binary that is missing on
// this machine is not a mistake of the file.
func TestCheckOfImports(t *testing.T) {
	dir, o := written(t, "[runtimes.runc]\nruntime_path = \"$DIR/runc\"\n[import]\ncrio = [\"$DIR/crio.conf\"]\n")
	file := filepath.Join(dir, "crio.conf")
	for _, c := range []struct {
		toml string
		code int
		want string
	}{
		{"[crio.runtime.runtimes.a]\nruntime_path = \"" + dir + "/runc\"\nmonitor_path = \"/x\"\n", 0, "note: " + file + ":3:1: "},
		{"[crio.runtime.runtimes.a]\nruntime_path = \"/nowhere\"\n", commandline.Degraded, "handler \"a\": " + file + ":1: runtime_path: /nowhere does not exist"},
		{"[crio.runtime.runtimes.a]\nruntime_path = 1\n", commandline.Mistaken, file + ":2:1: runtimes.a.runtime_path: must be a string"},
	} {
		test.Must(t, os.WriteFile(file, []byte(c.toml), 0o600))
		var stdout, stderr bytes.Buffer
		code := check(t.Context(), o, "table", &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String()+stderr.String(), c.want) {
			t.Errorf("exit status %d, want %d\n%s\n%s", code, c.code, stdout.String(), stderr.String())
		}
	}
}

func TestConfigDiffByKey(t *testing.T) {
	live := []*adminv1.Setting{{Key: "a", Value: "1", Origin: "/x:1"}, {Key: "b", Value: "2"}, {Key: "c", Value: "3", Origin: "/x:3"}}
	files := []*adminv1.Setting{{Key: "b", Value: "2"}, {Key: "c", Value: "4", Origin: "/y:1"}, {Key: "d", Value: "5", Origin: "/y:2"}}
	var lines []string
	for _, d := range configDiff(live, files) {
		lines = append(lines, d.String())
	}
	got := strings.Join(lines, "\n")
	if want := "~ c = 4 # running: 3; /y:1\n+ d = 5 # /y:2\n- a = 1 # running, from /x:1"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
