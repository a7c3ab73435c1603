package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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

// CapabilitiesCommand makes "berth capabilities", which is also below "berth handler".
func CapabilitiesCommand() *cobra.Command {
	r := &cli.Remote{}
	selfCheck := false
	c := &cobra.Command{
		Use:   "capabilities [HANDLER]",
		Short: "Show the capabilities of one handler, or of all handlers side by side",
		Long: `Show the capabilities of a handler on this node, and how each is known: the runtime
declared it, it was probed on this node, or a self-check pod exercised it. Without a
name, the handlers are shown side by side; -o wide adds notes.

With --self-check, a self-check pod first runs under the handler and exercises what it
can. The exit status is 3 if that fails or does not finish within --timeout, or if
nothing is known of the handler.

JSON and YAML output is the format that "kubectl berth --handlers" reads.`,
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
			return output.Encode(c.OutOrStdout(), r.Output, inventory{all}, func(w io.Writer) error { return capabilityMatrix(all, r.Wide()).Write(w) })
		})(c, args)
	}
	c.ValidArgsFunction = r.CompleteHandlers
	r.Flags(c)
	c.Flags().BoolVar(&selfCheck, "self-check", false, "first run a self-check pod under the handler")
	probeTimeoutFlag(r, c)
	return c
}

// showCapabilities shows those of one handler.
func showCapabilities(ctx context.Context, r *cli.Remote, c *cobra.Command, daemon *client.Client, name string, selfCheck bool) error {
	if selfCheck {
		resp, err := probe(ctx, r, c, daemon, name, true)
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
	return output.Encode(c.OutOrStdout(), r.Output, inventory{of}, func(w io.Writer) error { return capabilityList(of[0], r.Wide()).Write(w) })
}

// untried is said of a self-check pod that showed nothing but that it runs.
const untried = "the self-check pod ran, but could not exercise any capabilities under this handler: those neither declared nor probed are unknown"

// tried says whether a self-check pod tried anything. Pure.
func tried(t capability.Table) bool {
	for _, k := range t.Capabilities {
		if k.Source == capability.Ran {
			return true
		}
	}
	return false
}

// inventory is the list of handlers that "kubectl berth --handlers" reads.
type inventory struct {
	Handlers []handlerCapabilities `json:"handlers"`
}

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

// isolationRow is no capability, and is shown like one.
const isolationRow = "isolation"

// conformsRow is shown of those who promise something.
const conformsRow = "conforms"

// conforming are the sets of properties that self-check pods found, "-" if there are none.
func (h handlerCapabilities) conforming() capability.Known {
	if len(h.Conforms) == 0 {
		return capability.Known{Answer: "-"}
	}
	return capability.Known{Answer: capability.Answer(strings.Join(h.Conforms, ", ")), Source: capability.Ran}
}

// isolationOf is the class and how it is known, "unknown" if it is not.
func (h handlerCapabilities) isolationOf() capability.Known {
	if h.Isolation == "" {
		return capability.Known{Answer: capability.Unknown}
	}
	return capability.Known{Answer: capability.Answer(h.Isolation), Source: h.IsolationSource}
}

// shown is what is known of a capability, with the actions of seccomp in its note.
func (h handlerCapabilities) shown(n capability.Name) capability.Known {
	k := h.Of(n)
	if n != capability.Seccomp || len(h.SeccompActions) == 0 {
		return k
	}
	var words []string
	for _, a := range h.SeccompActions {
		words = append(words, strings.ToLower(strings.TrimPrefix(a, "SCMP_ACT_")))
	}
	actions := "it can " + strings.Join(words, ", ")
	if k.Note != "" {
		actions = k.Note + "; " + actions
	}
	k.Note = actions
	return k
}

// capabilityList has a row for each capability of a handler.
func capabilityList(h handlerCapabilities, wide bool) *output.Table {
	t := &output.Table{Header: []string{"CAPABILITY", "ANSWER", "KNOWN", "NOTE"}, Whole: wide}
	add := func(name string, k capability.Known) {
		t.Add(name, string(k.Answer), cmp.Or(string(k.Source), "-"), k.Note)
	}
	add(isolationRow, h.isolationOf())
	if len(h.Conforms) > 0 {
		add(conformsRow, h.conforming())
	}
	for _, n := range h.Sorted() {
		add(string(n), h.shown(n))
	}
	return t
}

// capabilityMatrix has a row for each capability and a column for each handler.
func capabilityMatrix(handlers []handlerCapabilities, wide bool) *output.Table {
	t := &output.Table{Header: []string{"CAPABILITY"}, Whole: wide}
	every := capability.Table{} // which capabilities any of them has
	for _, h := range handlers {
		t.Header = append(t.Header, h.Name)
		for n := range h.Capabilities {
			every.Set(n, capability.Unknown, "", "")
		}
	}
	row := func(name string, of func(handlerCapabilities) string) {
		cells := []string{name}
		for _, h := range handlers {
			cells = append(cells, of(h))
		}
		t.Add(cells...)
	}
	row(isolationRow, func(h handlerCapabilities) string { return cell(h.isolationOf(), wide) })
	if slices.ContainsFunc(handlers, func(h handlerCapabilities) bool { return len(h.Conforms) > 0 }) {
		row(conformsRow, func(h handlerCapabilities) string { return cell(h.conforming(), wide) })
	}
	for _, n := range every.Sorted() {
		row(string(n), func(h handlerCapabilities) string { return cell(h.shown(n), wide) })
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
