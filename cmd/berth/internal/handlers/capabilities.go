package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// CapabilitiesCommand returns the command "berth capabilities".
func CapabilitiesCommand() *cobra.Command {
	r := &cli.Remote{}
	selfCheck := false
	c := &cobra.Command{
		Use:   "capabilities [HANDLER]",
		Short: "Show the capabilities of one handler, or of all handlers side by side",
		Long: `Show the capabilities of a handler on this node, and how each capability is known: the
runtime declared it, berth probed it on this node, or a self-check pod tried it. Without
the name of a handler, all handlers are shown side by side; -o wide adds notes.

With --self-check, self-check pods first run under the handler. They try exec,
in-place-resize and user-namespaces, as far as the runtime allows. The exit status is 3
if the first self-check pod fails, if the self-check pods do not finish within
--timeout, or if nothing is known about the handler.

"kubectl berth --handlers" reads the output of -o json and -o yaml.`,
		Example: "  berth capabilities\n  berth capabilities gvisor\n  berth capabilities runc --self-check\n  berth capabilities -o yaml > handlers.yaml",
		Args:    cobra.MaximumNArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if selfCheck && len(args) == 0 {
			return commandline.Misused(c, errors.New("--self-check needs a HANDLER"))
		}
		if !selfCheck && !c.Flags().Changed("timeout") {
			r.Timeout = cli.CallTimeout
		}
		return r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			if len(args) == 1 {
				return showCapabilities(ctx, r, c, daemon, args[0], selfCheck)
			}
			list, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
			if err != nil {
				return err
			}
			all := capabilitiesOf(list.GetHandlers()...)
			return output.Encode(c.OutOrStdout(), r.Output, map[string]any{"handlers": all}, r.Table(capabilityMatrix(all, r.Wide())))
		})(c, args)
	}
	c.ValidArgsFunction = r.CompleteHandlers
	r.Flags(c)
	r.NoHeadersFlag(c)
	c.Flags().BoolVar(&selfCheck, "self-check", false, "first run self-check pods under the handler")
	c.Flags().DurationVar(&r.Timeout, "timeout", 0, "how long to wait; 0 has no limit (default 30s; with --self-check, default 0)")
	return c
}

func showCapabilities(ctx context.Context, r *cli.Remote, c *cobra.Command, daemon *client.Client, name string, selfCheck bool) error {
	if selfCheck {
		resp, err := probe(ctx, c, daemon, name, true)
		if err != nil {
			return err
		}
		if h := resp.GetHandler(); h.GetProbeError() != "" {
			return commandline.Found("handler %q cannot run pods: %s", name, h.GetProbeError())
		}
	}
	resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: name})
	if err != nil {
		return err
	}
	of := capabilitiesOf(resp.GetHandler())
	if of[0].Table.Empty() {
		return commandline.Found("the capabilities of handler %q are unknown; see \"berth handler probe %s\"", of[0].Name, of[0].Name)
	}
	if selfCheck && !tried(of[0].Table) {
		fmt.Fprintln(c.ErrOrStderr(), untried)
	}
	return output.Encode(c.OutOrStdout(), r.Output, map[string]any{"handlers": of}, r.Table(capabilityList(of[0], r.Wide())))
}

// untried is the note about a self-check pod that ran but exercised no capability.
const untried = "the self-check pod ran, but could not exercise any capabilities under this handler: those neither declared nor probed are unknown"

func tried(t capability.Table) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(t.Capabilities)), func(k capability.Known) bool { return k.Source == capability.Ran })
}

// handlerCapabilities is a handler in the list for "kubectl berth --handlers".
type handlerCapabilities struct {
	Name    string `json:"name"`
	Default bool   `json:"default,omitempty"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	capability.Table
}

func capabilitiesOf(handlers ...*adminv1.Handler) []handlerCapabilities {
	all := []handlerCapabilities{}
	for _, h := range handlers {
		all = append(all, handlerCapabilities{h.GetName(), h.GetIsDefault(), cli.StateWord(h.GetState()), h.GetReason(), client.Capabilities(h)})
	}
	return all
}

// Rows before the capabilities: the isolation class, and the conformance sets that self-check pods
// confirmed. conformsRow is shown only if a handler has a set.
const isolationRow, conformsRow = "isolation", "conforms"

func rowsOf(handlers ...handlerCapabilities) []string {
	rows, every := []string{isolationRow}, capability.Table{}
	for _, h := range handlers {
		if len(h.Conforms) > 0 && len(rows) == 1 {
			rows = append(rows, conformsRow)
		}
		for n := range h.Capabilities {
			every.Set(n, capability.Unknown, "", "")
		}
	}
	for _, n := range every.Sorted() {
		rows = append(rows, string(n))
	}
	return rows
}

// known returns a row's entry for a handler.
func (h handlerCapabilities) known(row string) capability.Known {
	switch {
	case row == isolationRow && h.Isolation != "":
		return capability.Known{Answer: capability.Answer(h.Isolation), Source: h.IsolationSource}
	case row == conformsRow && len(h.Conforms) == 0:
		return capability.Known{Answer: "-"}
	case row == conformsRow:
		return capability.Known{Answer: capability.Answer(strings.Join(h.Conforms, ", ")), Source: capability.Ran}
	}
	k := h.Of(capability.Name(row))
	if row == string(capability.Seccomp) && len(h.SeccompActions) > 0 {
		actions := strings.ToLower(strings.ReplaceAll(strings.Join(h.SeccompActions, ", "), "SCMP_ACT_", ""))
		k.Note = strings.TrimPrefix(k.Note+"; actions: "+actions, "; ")
	}
	return k
}

// capabilityList returns a table with a row for each capability of a handler.
func capabilityList(h handlerCapabilities, wide bool) *output.Table {
	t := &output.Table{Header: []string{"CAPABILITY", "ANSWER", "KNOWN", "NOTE"}, Whole: wide}
	for _, row := range rowsOf(h) {
		k := h.known(row)
		t.Add(row, string(k.Answer), cmp.Or(string(k.Source), "-"), k.Note)
	}
	return t
}

// capabilityMatrix returns a table with a row for each capability and a column for each handler.
func capabilityMatrix(handlers []handlerCapabilities, wide bool) *output.Table {
	t := &output.Table{Header: []string{"CAPABILITY"}, Whole: wide}
	for _, h := range handlers {
		t.Header = append(t.Header, h.Name)
	}
	for _, row := range rowsOf(handlers...) {
		cells := []string{row}
		for _, h := range handlers {
			cells = append(cells, cell(h.known(row), wide))
		}
		t.Add(cells...)
	}
	return t
}

func cell(k capability.Known, wide bool) string {
	text := string(k.Answer)
	if k.Source != "" {
		text += " (" + string(k.Source) + ")"
	}
	if wide && k.Note != "" {
		text += ": " + k.Note
	}
	return text
}
