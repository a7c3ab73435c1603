package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/pflag"

	"github.com/berth-cri/berth/contrib/cluster/pkg/capacity"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/internal/test/commandtest"
)

func TestExamples(t *testing.T) { commandtest.Examples(t, newCommand) }

// Every flag and metric has a row in the section berth-controller of docs/runtimeclass-reference.md.
func TestFlagsAndMetricsAreDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../../../docs/runtimeclass-reference.md"))(t)
	_, part, there := strings.Cut(string(text), "\n## berth-controller\n")
	part, _, _ = strings.Cut(part, "\n## ")
	if !there {
		t.Fatal("the page has no section berth-controller")
	}
	families := test.Value(func() ([]*dto.MetricFamily, error) {
		r := prometheus.NewPedanticRegistry()
		capacity.NewMetrics(r).Failed(errors.New("none")) // a vector without values is not gathered
		return r.Gather()
	}())(t)
	for _, f := range families {
		kind := strings.ToLower(f.GetType().String())
		if want := "| `" + f.GetName() + "` | " + kind + " | " + f.GetHelp() + " |"; !strings.Contains(part, want) {
			t.Errorf("the section lacks the row: %s", want)
		}
	}
	newCommand().LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(part, "| `--"+f.Name+"` |") {
			t.Errorf("--%s has no row", f.Name)
		}
	})
}

// Controllers that were installed in different ways use the same lease, so that only one leads.
func TestOneLease(t *testing.T) {
	const want = "berth-system"
	if f := newCommand().Flag("namespace"); f.DefValue != want {
		t.Errorf("the lease is in %q by default, want %q", f.DefValue, want)
	}
	text := test.Value(os.ReadFile("../../../kubernetes/capacity.yaml"))(t)
	for one := range strings.SplitSeq(string(text), "\n---\n") {
		if (strings.Contains(one, "\nkind: Role\n") || strings.Contains(one, "\nkind: RoleBinding\n")) && !strings.Contains(one, "\n  namespace: "+want+"\n") {
			t.Errorf("this object is not in the namespace of the lease:\n%s", one)
		}
	}
}
