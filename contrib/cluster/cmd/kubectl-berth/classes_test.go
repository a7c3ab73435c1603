package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
)

// ran runs a command line without a cluster, and returns exit status and output.
func ran(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("KUBECONFIG", "/nowhere")
	var out, told strings.Builder
	root := newRoot(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &told})
	root.SetArgs(args)
	code = commandline.Report(&told, "error:", root.ExecuteContext(t.Context()))
	return code, out.String(), told.String()
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	test.Must(t, os.WriteFile(path, []byte(text), 0o640))
	return path
}

const (
	oneClass = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: sandboxed}\nhandler: kata\noverhead: {podFixed: {memory: 64Mi}}\nscheduling: {nodeSelector: {vm: \"yes\"}}\n"
	onePod   = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  runtimeClassName: sandboxed\n  hostPID: true\n  containers: [{name: c, image: i}]\n"
	service  = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	handlers = "handlers:\n- name: kata\n  isolation: vm\n  overhead: {pods: 4, memory: {p50: 90Mi, p95: 100Mi, max: 110Mi}, cpu: {p50: 1m, p95: 2m, max: 3m}}\n  capabilities: {host-pid: {answer: \"no\", source: declared, note: it has a kernel of its own}}\n- name: runc\n  default: true\n  isolation: shared-kernel\n  capabilities: {host-pid: {answer: \"yes\", source: ran}}\n"
)

func TestCommandsWithoutACluster(t *testing.T) {
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
		{"lint " + file(t, "counted.yaml", strings.Replace(oneClass, "memory: 64Mi", "feature.node.kubernetes.io/handler.kata.pods: 1", 1)), 0, "", "stay pending unless berth-controller runs"},
		{"lint " + classes, 0, "", "note: " + classes + ":8: document 2: Service web is skipped\n"},
		{"lint " + sound + " --handlers kata,runc", 0, "", ""},
		{"lint " + sound + " --handlers runc", 3, `handler "kata" does not exist`, "error: 1 error and 0 warnings in 1 RuntimeClass\n"},
		{"lint " + sound + " --handlers " + known, 3, "64Mi is less than 100Mi, the p95 of 4 pods; declare 100Mi", "error: 2 errors and 0 warnings in 1 RuntimeClass\n"},
		{"lint " + sound + " --measurements " + known + " -o json", 3, `"rule": "overhead-too-small"`, "error: 2 errors"},
		{"lint " + sound + " --handlers a.b,c", 2, "", "error: open a.b,c: no such file"},
		{"lint " + sound + " --handlers Runc", 2, "", `error: --handlers: "Runc" is not a valid handler name`},
		{"lint " + sound + " --handlers runc -o yaml", 3, "errors: 1\n", "error: 1 error"},
		{"lint " + pods, 2, "", ":1: document 1: Pod web is skipped\nerror: no RuntimeClass found in " + pods + "\n"},
		{"lint " + file(t, "empty.yaml", "# nothing\n"), 2, "", "error: no RuntimeClass found in "},
		{"lint " + file(t, "bad.yaml", oneClass+"---\na: [\n"), 2, "", "bad.yaml:8: document 2: is not YAML: "},
		{"lint " + file(t, "half.yaml", "kind: RuntimeClass\napiVersion: node.k8s.io/v1\nhandler: 5\n---\n"+strings.Replace(oneClass, "/v1", "/v1beta1", 1)), 2, "half.yaml:5: document 2: error: ", "half.yaml:3: document 1: is not a RuntimeClass: handler cannot be a number\n"},
		{"lint /nowhere.yaml /nowhere-either.yaml", 2, "", "error: open /nowhere.yaml: no such file or directory\nopen /nowhere-either.yaml: no such file or directory\n"},
		{"lint " + t.TempDir(), 2, "", "is a directory"},
		{"fit -f " + pods + " --handlers " + known + " --classes " + sound, 3, "Pod web  -                    runc     yes   shared-kernel  -            -      -\nPod web  sandboxed (current)  kata     no    vm             memory=64Mi  -      spec.hostPID: true needs host-pid, but the handler does not support it: it has a kernel of its own\n", "error: 1 pod of 1 cannot run as written\n"},
		{"fit -f " + pods + " --handlers kata", 3, `pod rejected: RuntimeClass "sandboxed" not found`, "error: 1 pod of 1 cannot run as written\n"},
		{"fit -f " + pods + " --handlers runc --classes " + sound, 3, `the handler "kata" is not in the list`, "error: 1 pod of 1"},
		{"fit -f " + file(t, "classless.yaml", strings.Replace(onePod, "  runtimeClassName: sandboxed\n", "", 1)+"---\n"+oneClass) + " --handlers " + known, 0, "Pod web  - (current)  runc     yes", ""},
		{"fit -f " + file(t, "costly.yaml", strings.Replace(onePod, "hostPID: true", "overhead: {memory: 1Mi}", 1)) + " --handlers kata --classes " + sound, 3, `pods "web" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead` + "\n", "error: 1 pod of 1 cannot run as written\n"},
		{"fit -f " + pods + " --handlers " + known + " -o json", 3, `"fits": "no"`, "cannot run as written"},
		{"lint " + sound + " --handlers " + raw, 3, "64Mi is less than 98765432, the p95 of 4 pods; declare 95Mi", "error: 2 errors"},
		{"fit -f " + pods + " --handlers " + file(t, "kata.yaml", "handlers: [{name: kata, state: cordoned}]\n"), 3, "the handler is cordoned", "error: 1 pod of 1 cannot run as written\n"},
		{"fit web --handlers runc", 2, "", "error: --handlers does not use the cluster: it needs -f; see"},
		{"fit -f " + pods + " --classes " + sound, 2, "", "error: --classes needs --handlers; see"},
		{"generate --handlers " + known, 0, "# overhead: measured, p95 of 4 pods\napiVersion: node.k8s.io/v1\nhandler: kata\nkind: RuntimeClass\nmetadata:\n  annotations:\n    berth.dev/capabilities: '{\"host-pid\":{\"answer\":\"no\",\"note\":\"it has a kernel of\n      its own\"}}'\n    berth.dev/isolation: vm\n  name: kata\noverhead:\n  podFixed:\n    cpu: 2m\n    feature.node.kubernetes.io/handler.kata.pods: \"1\"\n    memory: 100Mi\nscheduling:\n  nodeSelector:\n    feature.node.kubernetes.io/handler.kata.present: \"true\"\n", "note: pods of these classes stay pending unless Node Feature Discovery and berth-controller run"},
		{"generate runc --handlers " + known + " --any-node --no-capacity", 0, "# overhead: not measured, none declared\napiVersion: node.k8s.io/v1\nhandler: runc\nkind: RuntimeClass\nmetadata:\n  annotations:\n    berth.dev/capabilities: '{\"host-pid\":{\"answer\":\"yes\"}}'\n    berth.dev/default: \"true\"\n    berth.dev/isolation: shared-kernel\n  name: runc\n", ""},
		{"generate kata --no-capacity --handlers " + known, 0, "podFixed:\n    cpu: 2m\n    memory: 100Mi\nscheduling:\n  nodeSelector:\n    feature.node.kubernetes.io/handler.kata: ready\n", "note: pods of these classes stay pending unless Node Feature Discovery runs; without it"},
		{"generate kata --handlers kata --measurements " + known + " -o json", 0, `"memory": "100Mi"`, "note: pods of these classes stay pending unless Node Feature Discovery and berth-controller run"},
		{"generate nobody --handlers runc", 2, "", "error: handler \"nobody\" does not exist; there are runc\n"},
		{"generate rnuc --handlers runc", 2, "", "error: handler \"rnuc\" does not exist; there are runc\n"},
		{"generate --handlers runc --toleration :Never", 2, "", `error: --toleration: toleration ":Never"`},
		{"generate --handlers " + file(t, "off.yaml", "handlers: [{name: kata, state: draining}]\n"), 3, "", "note: handler kata is draining; no class is generated\nerror: no handler accepts pods"},
		{"policy --classes " + sound + " --handlers " + known, 0, "- expression: '{''sandboxed'': {''host-pid'': '', but the handler does not", ""},
		{"policy --classes " + sound + " --handlers " + known + " -o json", 0, `"name": "berth-refuse"`, ""},
		{"policy --classes " + sound, 2, "", "error: nothing is known of what handlers can do: use --handlers with the output of"},
		{"policy --classes " + file(t, "annotated.yaml", strings.Replace(oneClass, "{name: sandboxed}", "{name: sandboxed, annotations: {berth.dev/isolation: vm}}", 1)), 0, "name: berth-refuse\n", "note: the handler of pods without a class is not known: these pods are not checked; use --default\n"},
		{"policy --classes " + file(t, "two.yaml", oneClass+"---\n"+strings.Replace(oneClass, "sandboxed", "other", 1)+service) + " --handlers " + file(t, "one.yaml", strings.Replace(handlers, "name: kata", "name: kata-2", 1)), 0, "berth-refuse", "note: nothing is known of class other: its pods are not checked; generate the class again, or use --handlers\nnote: nothing is known of class sandboxed: "},
		{"policy --classes " + file(t, "wrong.yaml", strings.Replace(oneClass, "{name: sandboxed}", "\n  name: sandboxed\n  annotations:\n    berth.dev/isolation: strong", 1)), 2, "", `wrong.yaml:6: document 1: annotation berth.dev/isolation of RuntimeClass sandboxed has the wrong value: isolation "strong" must be one of`},
		{"policy --classes " + pods + " --handlers " + known, 2, "", "error: --classes: no RuntimeClass found in "},
		{"policy --classes " + sound + " --handlers " + known + " --rules " + file(t, "rules.yaml", "rules:\n- name: all\n  isolation: vm\n"), 0, "kind: MutatingAdmissionPolicy\n", ""},
		{"policy --classes " + sound + " --handlers " + known + " --rules " + file(t, "badrules.yaml", "rules:\n- name: all\n  isolation: vm\n  pod: {}\n"), 2, "", `badrules.yaml:4: document 1: unknown field "rules[0].pod"; allowed are name, namespaces, pods, class, isolation, least (did you mean "pods"?)`},
		{"policy --classes " + sound + " --handlers " + known + " --rules " + file(t, "norules.yaml", "rules:\n- name: all\n  class: sandbox\n"), 2, "", `norules.yaml:3: document 1: rules[0].class: RuntimeClass "sandbox" does not exist; there are sandboxed`},
		{"policy --classes " + sound + " --handlers " + known + " --default crun", 2, "", `error: --default: handler "crun" is not known; known are kata, runc`},
		{"policy --workloads refuse", 2, "", "error: --workloads refuse must be warn, deny or ignore; see"},
		{"generate --handlers=", 2, "", "error: --handlers is empty; see"},
		{"policy --rules=", 2, "", "error: --rules is empty; see"},
		{"policy --with-state", 2, "", "error: --with-state needs --handlers: a class does not have the state of its handler; see"},
		{"policy --classes " + sound + " --handlers " + known + " --rules " + file(t, "exempt.yaml", "rules:\n- {name: system, namespaces: {names: [kube-system]}, isolation: vm}\n"), 0, "berth-choose", "note: rule system matches no pods: all of its namespaces are exempt\n"},
		{"fit -f pod.yaml deploy/web", 2, "", "error: use -f or TYPE/NAME, not both; see"},
		{"policy --exempt Kube", 2, "", `error: --exempt: "Kube" is not a name of a namespace`},
		{"policy all", 2, "", `error: "kubectl berth policy" takes no arguments, got "all"; see "kubectl berth policy --help"`},
		{"audti", 2, "", `error: unknown command "audti" for "kubectl berth" (did you mean "audit"?); see "kubectl berth --help"`},
		{"lint", 2, "", `error: missing argument: kubectl berth lint FILE...; see "kubectl berth lint --help"`},
		{"audit --kubeconfig /nowhere", 2, "", "error: --kubeconfig /nowhere: no such file or directory\n"},
		{"migrate " + beta, 0, oneClass, "note: "},
		{"migrate " + sound, 0, oneClass, ""},
		{"migrate " + dots, 3, "", "must not contain dots"},
		{"migrate " + dots + " --handler a.b=a-b", 0, "handler: a-b\n", "note: "},
		{"migrate " + dots + " --handler a.b", 2, "", "error: --handler \"a.b\": write it as OLD=NEW\n"},
		{"migrate " + dots + " --handler a.b=b.c", 2, "", "is not a valid handler name"},
	} {
		t.Run(c.line, func(t *testing.T) {
			code, stdout, stderr := ran(t, strings.Fields(c.line)...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stdout == "" && stdout != "" || c.stderr == "" && stderr != "" {
				t.Errorf("exit status %d, want %d\nstdout: %s\nstderr: %s", code, c.code, stdout, stderr)
			}
		})
	}
}
