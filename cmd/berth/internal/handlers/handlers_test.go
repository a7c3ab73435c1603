package handlers

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// Names of handlers have up to 63 characters, those of pods up to 253; reasons can have any length.
// Every table fits 80 columns and shows where it was cut; -o wide and pipes get the whole text.
func TestEveryTableFitsAnOrdinaryTerminal(t *testing.T) {
	long, pod, reason := strings.Repeat("h", 63), strings.Repeat("p", 253), strings.Repeat("the shim does not answer; ", 40)
	handlers := []*adminv1.Handler{{
		Name: long, IsDefault: true, State: adminv1.State_STATE_NOT_READY, Type: "remote", RuntimeName: long, RuntimeVersion: "1.2.3-rc.1+" + long,
		Pods: 12345, Generation: 1 << 40, Path: "/" + reason, Digest: long, Origin: "/" + reason, Reason: reason,
	}}
	var capabilities []handlerCapabilities
	for i := range 20 {
		h := handlerCapabilities{Name: fmt.Sprint(i, long)}
		h.Set(capability.RecursiveReadOnlyMounts, capability.No, capability.Declared, reason)
		capabilities = append(capabilities, h)
	}
	settings := []*adminv1.Setting{{Key: "runtimes." + long + ".options.BinaryName", Value: reason, Origin: "/" + pod}}
	for name, of := range map[string]func(wide bool) *output.Table{
		"handlers": func(wide bool) *output.Table { return handlerTable(handlers, wide) },
		"features": func(wide bool) *output.Table { return capabilityMatrix(capabilities, wide) },
		"settings": func(wide bool) *output.Table { return settingTable(settings, wide) },
	} {
		t.Run(name, func(t *testing.T) {
			text := of(false).Text(80)
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
					t.Errorf("a line has %d columns: %s", n, line)
				}
			}
			if !strings.Contains(text, "…") {
				t.Errorf("the table does not show that it is cut:\n%s", text)
			}
			if whole := of(false).Text(0); strings.Contains(whole, "…") || !strings.Contains(whole, long) {
				t.Errorf("in a pipe, the table is\n%s", whole)
			}
			if !of(true).Whole || of(false).Whole {
				t.Error("Whole must be set exactly for the wide table")
			}
		})
	}
	// If the matrix is split into blocks, each handler is in one of them.
	text := capabilityMatrix(capabilities, false).Text(80)
	for i := range capabilities {
		if !strings.Contains(text, fmt.Sprint(i, "hhhhh")) {
			t.Errorf("handler %d is missing:\n%s", i, text)
		}
	}
}

func TestOutputForms(t *testing.T) {
	m := &adminv1.ListHandlersResponse{Handlers: []*adminv1.Handler{{Name: "runc", State: adminv1.State_STATE_READY, IsDefault: true, Pods: 3, Digest: strings.Repeat("a", 64)}}}
	for form, want := range map[string]string{
		"table": "NAME            STATE  TYPE  RUNTIME  PODS  GEN  REASON\nrunc (default)  ready  -     -        3     0\n",
		"wide":  "aaaaaaaaaaaa", "json": "\"name\": \"runc\"", "yaml": "  name: runc\n",
	} {
		var out bytes.Buffer
		r := &cli.Remote{Output: form}
		if err := r.Print(&out, m, handlerTable(m.GetHandlers(), r.Wide()).Write); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", form, err, out.String())
		}
	}
}

// The command derives the same labels from the response as the daemon itself.
func TestLabelsOfHandlers(t *testing.T) {
	handlers := []*adminv1.Handler{
		{Name: "a", State: adminv1.State_STATE_READY, MaxPods: 40, Capabilities: &adminv1.Capabilities{
			Isolation: "vm", Capabilities: []*adminv1.Capability{{Name: "checkpoint", Answer: "yes", Source: "ran"}},
		}},
		{Name: "b", State: adminv1.State_STATE_NOT_READY, Capabilities: &adminv1.Capabilities{Isolation: "vm"}},
		{Name: "c", State: adminv1.State_STATE_CORDONED},
		{Name: "d", State: adminv1.State_STATE_DRAINING},
	}
	var phases []handler.Phase
	for _, k := range knownOf(handlers) {
		phases = append(phases, k.Phase)
	}
	test.EqualLists(t, "phases", phases, []handler.Phase{handler.Ready, handler.NotReady, handler.Cordoned, handler.Draining})
	want := []nodelabel.Fact{
		{Key: nodelabel.Handler("a"), Value: nodelabel.Ready},
		{Key: nodelabel.MaxPods("a"), Value: "40"},
		{Key: nodelabel.About("a", "isolation"), Value: string(capability.VM)},
		{Key: nodelabel.About("a", "checkpoint"), Value: "true"},
	}
	test.EqualLists(t, "labels", nodelabel.Labels(knownOf(handlers)), want)
	metadata := func(labels []nodelabel.Fact) string { return fmt.Sprint(nodeOf("node-1", labels)["metadata"]) }
	if n := metadata(want); !strings.Contains(n, "name:node-1") || !strings.Contains(n, nodelabel.Handler("a")+":"+nodelabel.Ready) {
		t.Errorf("got %+v", n)
	}
	if n := metadata(nil); n != "map[labels:map[] name:node-1]" {
		t.Error("no labels must be an empty map, not null")
	}
}
