package chart

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what is rendered")

const (
	directory = "../../contrib/charts/berth"
	namespace = "berth-system"
)

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := loader.LoadValues(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// render returns all objects, sorted by file.
func render(t *testing.T, text string) (string, error) {
	t.Helper()
	return renderIn(t, namespace, text)
}

func renderIn(t *testing.T, namespace, text string) (string, error) {
	t.Helper()
	c, err := loader.Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	options := common.ReleaseOptions{Name: "berth", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values(t, text), options, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if text := strings.TrimSpace(files[name]); filepath.Ext(name) == ".yaml" && text != "" {
			b.WriteString("---\n" + text + "\n")
		}
	}
	return b.String(), nil
}

const full = `
image: {repository: registry.example/berth, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000", pullSecrets: [{name: registry}]}
endpoint: unix:///run/crio/crio.sock
config: |
  [metrics]
  address = "127.0.0.1:9091"
runtimes:
  crun: {kind: crun, version: "1.24", image: "registry.example/crun:1.24", path: /usr/bin/crun, options: "max_pods = 40"}
  gvisor: {kind: runsc, version: "20260101.0", image: "registry.example/runsc:1"}
  kata: {kind: kata, version: 3.20.0, hostPath: /opt/kata}
controller: {enabled: true, replicas: 3, countOverhead: once, podMonitor: {enabled: true, labels: {release: prometheus}}}
podLabels: {team: nodes}
podAnnotations: {note: kept}
affinity: {nodeAffinity: {}}
`

func TestLint(t *testing.T) {
	for name, text := range map[string]string{"defaults": "", "full": full, "removed": "state: removed"} {
		t.Run(name, func(t *testing.T) {
			for _, m := range lint.RunAll(directory, values(t, text), namespace).Messages {
				if m.Severity >= support.WarningSev {
					t.Error(m.Error())
				} else if !strings.Contains(m.Error(), "icon is recommended") {
					t.Log(m.Error())
				}
			}
		})
	}
}

// TestManifests compares what is committed with what the chart says.
func TestManifests(t *testing.T) {
	const first = "# Written by \"make chart-manifests\" from contrib/charts/berth, for clusters without Helm.\n" +
		"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: " + namespace + "\n  labels:\n    pod-security.kubernetes.io/enforce: privileged\n"
	for path, c := range map[string]struct{ before, values string }{
		"../../contrib/kubernetes/berth-installer.yaml": {first, ""},
		"testdata/full.yaml":                            {"", full},
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			got, err := render(t, c.values)
			if err != nil {
				t.Fatal(err)
			}
			got = c.before + got
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s is not what the chart says: run \"make chart-manifests\"; the chart says\n%s", path, got)
			}
		})
	}
}

// A key whose value was taken out, as by a comment, is as one that is not there.
func TestEmptyValues(t *testing.T) {
	if _, err := render(t, "runtimes:\nconfig:\n"); err != nil {
		t.Error(err)
	}
}

// TestRefused has values that no node could follow.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ values, says string }{
		"unknown runtime":  {`runtimes: {x: {kind: rkt, version: "1", image: a}}`, "/runtimes/x/kind"},
		"no kind":          {`runtimes: {x: {version: "1", image: a}}`, "kind"},
		"version in path":  {`runtimes: {x: {kind: crun, version: "../..", image: a}}`, "/runtimes/x/version"},
		"two sources":      {`runtimes: {x: {kind: crun, version: "1", image: a, hostPath: /opt/x}}`, "runtimes.x has image and hostPath: set only one"},
		"no source":        {`runtimes: {x: {kind: crun, version: "1"}}`, "runtimes.x has neither image nor hostPath"},
		"path of a node":   {`runtimes: {x: {kind: crun, version: "1", hostPath: /opt, path: /x}}`, "runtimes.x has path, which is for an image"},
		"handler's name":   {`runtimes: {X_y: {kind: crun, version: "1", image: a}}`, "at '/runtimes': additional properties 'X_y' not allowed"},
		"berth's endpoint": {"endpoint: unix:///run/berth/berth.sock", "/endpoint"},
		"misspelled":       {"stat: removed", "stat"},
		"state":            {"state: absent", "/state"},
		"endpoint":         {"endpoint: /run/containerd/containerd.sock", "/endpoint"},
		"no controller":    {"controller: {enabled: true, replicas: 0}", "/controller/replicas"},
		"monitor's labels": {"controller: {podMonitor: {labels: {release: 1}}}", "/controller/podMonitor/labels/release"},
		"counting":         {"controller: {countOverhead: twice}", "/controller/countOverhead"},
		"version a number": {`runtimes: {x: {kind: crun, version: 1.24, image: a}}`, "/runtimes/x/version"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, c.values)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

// TestPodMonitor reads the PodMonitor as the Prometheus operator does, and finds the port.
func TestPodMonitor(t *testing.T) {
	rendered, err := render(t, full)
	if err != nil {
		t.Fatal(err)
	}
	var monitor monitoringv1.PodMonitor
	for text := range strings.SplitSeq(rendered, "---\n") {
		if strings.Contains(text, "\nkind: PodMonitor\n") {
			if err := yaml.UnmarshalStrict([]byte(text), &monitor); err != nil {
				t.Fatal(err)
			}
		}
	}
	ends := monitor.Spec.PodMetricsEndpoints
	if monitor.Labels["release"] != "prometheus" || len(ends) != 1 || ends[0].Port == nil || ends[0].Path != "/metrics" {
		t.Fatalf("got %+v", monitor)
	}
	port := "- name: " + *ends[0].Port + "\n          containerPort: 8080\n"
	for key, value := range monitor.Spec.Selector.MatchLabels {
		if !strings.Contains(rendered, "      labels:\n        "+key+": "+value+"\n") {
			t.Errorf("no pod has the label %s: %s", key, value)
		}
	}
	if len(monitor.Spec.Selector.MatchLabels) == 0 || !strings.Contains(rendered, port) {
		t.Errorf("no pod has\n%s", port)
	}
	for _, values := range []string{"controller: {enabled: true}", "controller: {podMonitor: {enabled: true}}"} {
		if rendered, err := render(t, values); err != nil || strings.Contains(rendered, "PodMonitor") {
			t.Errorf("%s makes one, or %v", values, err)
		}
	}
}

// TestControllersRights compares the two ways in which the controller comes to a cluster.
func TestControllersRights(t *testing.T) {
	plain, err := os.ReadFile("../../contrib/kubernetes/capacity.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := render(t, full)
	if err != nil {
		t.Fatal(err)
	}
	want, got := rights(t, string(plain)), rights(t, rendered)
	if want["ClusterRole"] == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the chart gives %v, the manifests %v", got, want)
	}
}

// TestOneLease has the chart in another namespace, where its controller must not have a lease
// of its own: two would work at once. It is told how to count, too.
func TestOneLease(t *testing.T) {
	for value, want := range map[string]string{"": "by-status", ", countOverhead: once": "once"} {
		rendered, err := renderIn(t, "elsewhere", "controller: {enabled: true"+value+"}")
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for one := range strings.SplitSeq(rendered, "\n---\n") {
			var object struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Subjects []struct{ Namespace string }
				Spec     struct {
					Template struct {
						Spec struct{ Containers []struct{ Args []string } }
					}
				}
			}
			if err := yaml.Unmarshal([]byte(one), &object); err != nil {
				t.Fatal(err)
			}
			own, ours := strings.CutPrefix(object.Metadata.Name, "berth-controller")
			if !ours {
				continue
			}
			// Another installation has objects of other names in what they share.
			if (object.Metadata.Namespace != "elsewhere") != (own == "-elsewhere") {
				t.Errorf("a %s of namespace %q is named %s", object.Kind, object.Metadata.Namespace, object.Metadata.Name)
			}
			found[object.Kind] = object.Metadata.Namespace
			for _, s := range object.Subjects {
				found[object.Kind] += " for " + s.Namespace
			}
			for _, c := range object.Spec.Template.Spec.Containers {
				found[object.Kind] += " " + strings.Join(c.Args, " ")
			}
		}
		if w := (map[string]string{
			"ServiceAccount": "elsewhere", "ClusterRole": "", "ClusterRoleBinding": " for elsewhere", "Role": "berth-system", "RoleBinding": "berth-system for elsewhere",
			"Deployment": "elsewhere --count-overhead=" + want, "PodDisruptionBudget": "elsewhere",
		}); !maps.Equal(found, w) {
			t.Errorf("the chart has %q, want %q", found, w)
		}
	}
}

// rights are the rules of the controller's roles, by kind.
func rights(t *testing.T, manifests string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for one := range strings.SplitSeq(manifests, "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    any
		}
		if err := yaml.Unmarshal([]byte(one), &object); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(object.Metadata.Name, "berth-controller") && object.Rules != nil {
			all[object.Kind] = object.Rules
		}
	}
	return all
}

// TestRemovedWithoutImages: a node whose runtime cannot be pulled any more gets a pod that
// removes berth.
func TestRemovedWithoutImages(t *testing.T) {
	for state, want := range map[string]int{"installed": 2, "removed": 0} {
		got, err := render(t, full+"state: "+state)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(got, "reference: registry.example/"); n != want {
			t.Errorf("%s: %d images of runtimes are mounted, want %d", state, n, want)
		}
		if n := strings.Count(got, "mountPath: /runtimes/"); n != want {
			t.Errorf("%s: %d runtimes are mounted, want %d", state, n, want)
		}
	}
}
