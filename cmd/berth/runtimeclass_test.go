package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/cmd/internal/classcmd"
	"github.com/berth-cri/berth/cmd/internal/classrun"
)

// The program that does the work is not beside the test's binary, and so the test
// does it itself, with the command line that the program would get.
func init() {
	workOnClasses = func(ctx context.Context, call classcmd.Call) error {
		root := classcmd.New(classrun.Run, misused)
		root.SetArgs(call.Line())
		root.SetIn(call.Stdin)
		root.SetOut(call.Stdout)
		root.SetErr(call.Stderr)
		root.SilenceErrors, root.SilenceUsage = true, true
		return root.ExecuteContext(ctx)
	}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	oneClass = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: sandboxed}\nhandler: kata\noverhead: {podFixed: {memory: 64Mi}}\nscheduling: {nodeSelector: {vm: \"yes\"}}\n"
	onePod   = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  runtimeClassName: sandboxed\n  hostPID: true\n  containers: [{name: c, image: i}]\n"
	service  = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	handlers = "handlers:\n- name: kata\n  isolation: vm\n  overhead: {pods: 4, memory: {p50: 90Mi, p95: 100Mi, max: 110Mi}, cpu: {p50: 1m, p95: 2m, max: 3m}}\n  capabilities: {host-pid: {answer: \"no\", source: probed, note: it has a kernel of its own}}\n- name: runc\n  default: true\n  isolation: shared-kernel\n  capabilities: {host-pid: {answer: \"yes\", source: ran}}\n"
)

func TestRuntimeclassCommands(t *testing.T) {
	classes, pods, known := file(t, "classes.yaml", oneClass+service), file(t, "pod.yaml", onePod), file(t, "handlers.yaml", handlers)
	sound, beta := file(t, "sound.yaml", oneClass), file(t, "beta.yaml", strings.Replace(oneClass, "/v1", "/v1beta1", 1))
	raw := file(t, "raw.yaml", strings.NewReplacer("95: 100Mi", "95: 98765432", "95: 2m", "95: 2804132n").Replace(handlers))
	dots := file(t, "dots.yaml", "apiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClass\nmetadata: {name: x}\nspec: {runtimeHandler: a.b}\n")
	for _, c := range []struct {
		line           string
		code           int
		stdout, stderr string
	}{
		{"lint " + sound, 0, "", ""},
		{"lint " + classes, 0, "", "note: " + classes + ":8: document 2: Service web is not looked at\n"},
		{"lint " + sound + " --handlers kata,runc", 0, "", ""},
		{"lint " + sound + " --handlers runc", 1, `there is no handler "kata"`, "berth: 1 error and 0 warnings in 1 RuntimeClass\n"},
		{"lint " + sound + " --handlers " + known, 1, "64Mi is less than the 100Mi that 95 % of 4 pods stayed below; declare 100Mi", "berth: 2 errors and 0 warnings in 1 RuntimeClass\n"},
		{"lint " + sound + " --measurements " + known + " -o json", 1, `"rule": "overhead-too-small"`, "berth: 2 errors"},
		{"lint " + sound + " --live --handlers runc", 2, "", "berth: --live and --handlers are two lists"},
		{"lint " + sound + " --handlers a.b,c", 2, "", "berth: open a.b,c: no such file"},
		{"lint " + sound + " --handlers Runc", 2, "", `berth: --handlers: "Runc" is no name of a handler`},
		{"lint " + sound + " --against " + file(t, "now.yaml", strings.Replace(oneClass, "kata", "runc", 1)), 1, "field is immutable", "berth: 1 error"},
		{"lint " + sound + " --against " + pods, 2, "", "berth: --against: there is no RuntimeClass in "},
		{"lint " + sound + " --handlers runc -o yaml", 1, "errors: 1\n", "berth: 1 error"},
		{"lint " + pods, 2, "", "berth: there is no RuntimeClass in " + pods + ", but " + pods + ":1: document 1: Pod web\n"},
		{"lint " + file(t, "empty.yaml", "# nothing\n"), 2, "", "berth: there is no RuntimeClass in "},
		{"lint " + file(t, "bad.yaml", oneClass+"---\na: [\n"), 2, "", "bad.yaml:8: document 2: is not YAML: "},
		{"lint /nowhere.yaml /nowhere-either.yaml", 2, "", "berth: open /nowhere.yaml: no such file or directory\nopen /nowhere-either.yaml: no such file or directory\n"},
		{"lint - -", 2, "", "berth: standard input is there twice\n"},
		{"lint " + t.TempDir(), 2, "", "is a directory"},
		{"simulate " + pods + " --classes " + classes, 0, "Pod web  sandboxed  yes       memory=64Mi  vm=yes         -\n", ""},
		{"simulate " + pods + " --classes " + classes + " -o yaml", 0, "  result:\n    apiVersion: v1\n    kind: Pod\n", ""},
		{"simulate " + pods, 1, `pods "web" is forbidden: pod rejected: RuntimeClass "sandboxed" not found`, "berth: 1 pod of 1 would be rejected\n"},
		{"simulate " + pods + " -o json", 1, `"admitted": false`, "berth: 1 pod of 1"},
		{"simulate " + classes, 2, "", "berth: there is no pod in "},
		{"simulate " + pods + " " + classes + " --classes " + sound, 2, "", `RuntimeClass "sandboxed" is there twice`},
		{"fit " + pods + " --handlers " + known + " --classes " + sound, 0, "Pod web  runc (default)  yes   shared-kernel  -       -    -\nPod web  kata            no    vm             100Mi   2m   sandboxed  spec.hostPID: true needs host-pid, and the handler does not have it: it has a kernel of its own\n", ""},
		{"fit " + pods + " --handlers kata", 0, "unknown", ""},
		{"fit " + file(t, "costly.yaml", strings.Replace(onePod, "hostPID: true", "overhead: {memory: 1Mi}", 1)) + " --handlers kata --classes " + sound, 1, `Pod web  kata     no    -          -       -    sandboxed  pods "web" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead` + "\n", "berth: no handler can run 1 pod of 1\n"},
		{"fit " + pods + " --handlers " + known + " -o json", 0, `"fits": "yes"`, ""},
		{"fit " + pods + " --handlers " + raw, 0, "vm             94.2Mi  2.8m  -", ""},
		{"fit " + pods + " --handlers " + raw + " -o json", 0, `"p95": "98765432"`, ""},
		{"lint " + sound + " --handlers " + raw, 1, "64Mi is less than the 94.2Mi that 95 % of 4 pods stayed below; declare 95Mi", "berth: 2 errors"},
		{"fit " + pods + " --handlers runc --prefer luck", 2, "", "berth: --prefer luck is none of isolation and overhead\n"},
		{"fit " + pods + " --handlers " + file(t, "kata.yaml", "handlers: [{name: kata, state: cordoned}]\n"), 1, "the handler is cordoned", "berth: no handler can run 1 pod of 1\n"},
		{"generate --handlers " + known, 0, "# overhead: measured, p95 of 4 pods\napiVersion: node.k8s.io/v1\nhandler: kata\nkind: RuntimeClass\nmetadata:\n  name: kata\noverhead:\n  podFixed:\n    cpu: 2m\n    memory: 100Mi\n", ""},
		{"generate runc --handlers " + known + " --any-node", 0, "# overhead: nothing was measured, and none is declared\napiVersion: node.k8s.io/v1\nhandler: runc\nkind: RuntimeClass\nmetadata:\n  name: runc\n", ""},
		{"generate kata --handlers kata --measurements " + known + " -o json", 0, `"memory": "100Mi"`, ""},
		{"generate nobody --handlers runc", 2, "", "berth: there is no handler \"nobody\"\n"},
		{"generate rnuc --handlers runc", 2, "", "berth: there is no handler \"rnuc\" (did you mean \"runc\"?)\n"},
		{"generate --handlers runc --toleration a:Never", 2, "", `berth: --toleration: toleration "a:Never"`},
		{"generate --handlers " + file(t, "off.yaml", "handlers: [{name: kata, state: draining}]\n"), 1, "", "note: handler kata is draining, and gets no class\nberth: no handler takes pods"},
		{"migrate " + beta, 0, oneClass, "note: "},
		{"migrate " + sound, 0, oneClass, ""},
		{"migrate " + dots, 1, "", "must not contain dots"},
		{"migrate " + dots + " --handler a.b=a-b", 0, "handler: a-b\n", "note: "},
		{"migrate " + dots + " --handler a.b", 2, "", "berth: --handler \"a.b\": write it as OLD=NEW\n"},
		{"migrate " + dots + " --handler a.b=b.c", 2, "", "is no name of a handler"},
		{"migrate " + dots + " " + beta, 2, "", "berth: one file is printed at a time"},
		{"migrate --write -", 2, "", "berth: standard input cannot be written"},
	} {
		t.Run(c.line, func(t *testing.T) {
			code, stdout, stderr := ran(t, append([]string{"runtimeclass"}, strings.Fields(c.line)...)...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stdout == "" && stdout != "" || c.stderr == "" && stderr != "" {
				t.Errorf("exit status %d\n%s\n%s", code, stdout, stderr)
			}
		})
	}
}

// All files are written, or none.
func TestMigrateInPlace(t *testing.T) {
	beta := strings.Replace(oneClass, "/v1", "/v1beta1", 1)
	one, two := file(t, "one.yaml", beta), file(t, "two.yaml", "apiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClass\nmetadata: {name: x}\nspec: {runtimeHandler: a.b}\n")
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(one, link); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if code, _, stderr := ran(t, "runtimeclass", "migrate", "-w", link, two); code != 1 || read(one) != beta {
		t.Errorf("exit status %d, %s: %s", code, stderr, read(one))
	}
	if code, _, stderr := ran(t, "runtimeclass", "migrate", "-w", link, two, filepath.Join(t.TempDir(), "none"), "--handler", "a.b=ab"); code != 2 || read(one) != beta {
		t.Errorf("exit status %d, %s: %s", code, stderr, read(one))
	}
	if code, stdout, stderr := ran(t, "runtimeclass", "migrate", "-w", link, two, "--handler", "a.b=ab"); code != 0 || stdout != "" || read(one) != oneClass || !strings.Contains(read(two), "handler: ab\n") {
		t.Errorf("exit status %d, %s: %s%s", code, stderr, read(one), read(two))
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
	if info, err := os.Stat(one); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file is %v, %v", info, err)
	}
	for _, dir := range []string{filepath.Dir(one), filepath.Dir(two)} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
}

// The program gets the flags as they were given, whatever is in them.
func TestTheLineOfTheProgram(t *testing.T) {
	var got []string
	c := classcmd.New(func(_ context.Context, call classcmd.Call) error {
		got = call.Line()
		return nil
	}, misused)
	c.SetArgs([]string{"generate", "--toleration", "a,b=c d:NoSchedule", "--toleration=-x", "--any-node", "-o", "json", "--handlers", "", "--", "-kata"})
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	want := []string{"generate", "--any-node=true", "--handlers=", "--output=json", "--toleration=a,b=c d:NoSchedule", "--toleration=-x", "--", "-kata"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// Without the program the command says what is missing.
func TestTheProgramIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := handOver(t.Context(), classcmd.Call{Command: "lint"})
	if err == nil || !strings.Contains(err.Error(), "berth-runtimeclass is neither in ") {
		t.Errorf("got %v", err)
	}
}

// What it ends with is what the command ends with.
func TestTheProgramsExitStatus(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	// Renamed into place: a file that any process holds open for writing cannot be run.
	path := filepath.Join(dir, classcmd.Program)
	if err := os.WriteFile(path+".new", []byte("#!/bin/sh\necho \"$@\"\ncat\necho said >&2\nexit 2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	var out, mistakes strings.Builder
	err := handOver(t.Context(), classcmd.Call{
		Command: "lint", Given: []string{"--strict=true"}, Arguments: []string{"a b"}, Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &mistakes,
	})
	if code := report(err, &mistakes); code != 2 || out.String() != "lint --strict=true -- a b\nin\n" || mistakes.String() != "said\n" {
		t.Errorf("%v: %d, %q, %q", err, code, out.String(), mistakes.String())
	}
}
