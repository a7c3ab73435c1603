package handlers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/overhead"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func overheadCommand() *cobra.Command {
	r := &cli.Remote{}
	fixed := false
	c := &cobra.Command{
		Use:   "overhead [NAME]",
		Short: "Show what a handler's pods use beyond their containers",
		Long: `Show what a handler's live pods use beyond their containers: memory and CPU of their
sandbox processes, shims and supervisors. Pods on a kernel of their own are not measured.
Without a name, all handlers are shown; -o yaml then prints a file for
--measurements of "kubectl berth". If p95 is above the value that the kubelet reserves,
that value is marked as exceeded and the exit status is 3. --pod-fixed prints the values to
reserve, and exits with 0.`,
		Example: "  berth handler overhead runc\n  berth handler overhead runc --pod-fixed",
		Args:    cobra.MaximumNArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			if len(args) == 0 {
				if fixed {
					return commandline.Misused(c, errors.New("--pod-fixed needs the name of a handler"))
				}
				return showOverheads(ctx, r, c.OutOrStdout(), daemon)
			}
			o, err := overheadOf(ctx, daemon, args[0])
			if err != nil {
				return err
			}
			if fixed { // no exit status 3: the output is the remedy for a p95 above the declared overhead
				return podFixed(c.OutOrStdout(), args[0], o)
			}
			if err := r.Print(c.OutOrStdout(), o, func(w io.Writer) error { return showOverhead(w, r, args[0], o) }); err != nil {
				return err
			}
			if o.GetWarning() != "" {
				return commandline.Found("%s", o.GetWarning())
			}
			return nil
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	r.NoHeadersFlag(c)
	c.Flags().BoolVar(&fixed, "pod-fixed", false, "print overhead.podFixed for a RuntimeClass, as YAML")
	c.MarkFlagsMutuallyExclusive("pod-fixed", "output")
	return c
}

// cpuWindow is the wait for a second sample of the pods, which gives their CPU use.
const cpuWindow = 2 * time.Second

// overheadOf calls the daemon again if it has sampled the pods only once, which gives no CPU use.
func overheadOf(ctx context.Context, daemon *client.Client, name string) (*adminv1.Overhead, error) {
	for again := true; ; again = false {
		h, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: name})
		o := h.GetOverhead()
		if err != nil || o.GetLive() == nil || o.GetLive().GetCpuNanocores() != nil || !again {
			return o, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(cpuWindow):
		}
	}
}

// measuredHandler is a handler in a file for "kubectl berth".
type measuredHandler struct {
	Name     string       `json:"name"`
	Overhead *measurement `json:"overhead,omitempty"`
}

type measurement struct {
	Pods   int32        `json:"pods"`
	Memory distribution `json:"memory"`
	// CPU is nil while unknown.
	CPU *distribution `json:"cpu,omitempty"`
}

type distribution struct {
	P50 string `json:"p50"`
	P95 string `json:"p95"`
	Max string `json:"max"`
	// Pods is nil if equal to the measurement's.
	Pods *int32 `json:"pods,omitempty"`
}

// measurementOf formats bytes, and billionths of a core, as Kubernetes does.
func measurementOf(e *adminv1.OverheadEstimate) *measurement {
	if e == nil {
		return nil
	}
	in := func(unit string, d *adminv1.OverheadDistribution) distribution {
		text := func(n uint64) string {
			if n == 0 {
				return "0"
			}
			return fmt.Sprint(n) + unit
		}
		return distribution{P50: text(d.GetP50()), P95: text(d.GetP95()), Max: text(d.GetMax())}
	}
	m := &measurement{Pods: e.GetPods(), Memory: in("", e.GetMemoryBytes())}
	if e.GetCpuNanocores() != nil {
		cpu := in("n", e.GetCpuNanocores())
		if n := e.GetCpuPods(); n != e.GetPods() {
			cpu.Pods = &n
		}
		m.CPU = &cpu
	}
	return m
}

func showOverheads(ctx context.Context, r *cli.Remote, w io.Writer, daemon *client.Client) error {
	list, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return err
	}
	t := overheadTable(r.Wide())
	handlers, above := []measuredHandler{}, []string(nil)
	for _, h := range list.GetHandlers() {
		resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: h.GetName()})
		if status.Code(err) == codes.NotFound {
			continue // removed since the list
		}
		if err != nil {
			return err
		}
		o := resp.GetOverhead()
		handlers = append(handlers, measuredHandler{h.GetName(), measurementOf(o.GetLive())})
		addOverhead(t, h.GetName(), o)
		if o.GetWarning() != "" {
			above = append(above, o.GetWarning())
		}
	}
	if err := output.Encode(w, r.Output, map[string]any{"handlers": handlers}, r.Table(t)); err != nil {
		return err
	}
	if len(above) > 0 {
		return commandline.Found("%s", strings.Join(above, "\n"))
	}
	return nil
}

func showOverhead(w io.Writer, r *cli.Remote, name string, o *adminv1.Overhead) error {
	if o.GetLive() == nil {
		_, err := fmt.Fprintf(w, "no data: %s\n", o.GetNoLiveReason())
		return err
	}
	t := overheadTable(r.Wide())
	addOverhead(t, name, o)
	return r.Table(t)(w)
}

func overheadTable(wide bool) *output.Table {
	return &output.Table{Header: []string{"HANDLER", "PODS", "MEMORY P50", "P95", "MAX", "CPU P50", "P95", "MAX", "DECLARED", "MEASURED"}, Whole: wide}
}

func addOverhead(t *output.Table, name string, o *adminv1.Overhead) {
	e := o.GetLive()
	measured := "no data: " + o.GetNoLiveReason()
	if e != nil {
		measured = cli.Ago(e.GetMeasuredAt().AsTime())
	}
	t.Add(slices.Concat([]string{name, podsCell(e)}, cells(e.GetMemoryBytes(), mebibytes), cells(e.GetCpuNanocores(), millicores),
		[]string{declaredCell(o), measured})...)
}

func cells(d *adminv1.OverheadDistribution, text func(uint64) string) []string {
	if d == nil {
		return []string{"-", "-", "-"}
	}
	return []string{text(d.GetP50()), text(d.GetP95()), text(d.GetMax())}
}

// podsCell returns the number of measured pods, and the number for CPU use if it differs.
func podsCell(e *adminv1.OverheadEstimate) string {
	if n := e.GetCpuPods(); n > 0 && n != e.GetPods() {
		return fmt.Sprintf("%d, CPU %d", e.GetPods(), n)
	}
	return fmt.Sprint(e.GetPods())
}

func declaredCell(o *adminv1.Overhead) string {
	text := ""
	if m := o.GetDeclaredMemoryBytes(); m > 0 {
		text = mebibytes(uint64(m))
	}
	if m := o.GetDeclaredCpuMillicores(); m > 0 {
		text += fmt.Sprintf(" %dm", m)
	}
	if text == "" {
		return "-"
	}
	if o.GetWarning() != "" {
		text += ", exceeded"
	}
	return strings.TrimSpace(text)
}

func mebibytes(n uint64) string { return fmt.Sprintf("%.1fMi", float64(n)/(1<<20)) }

func millicores(nano uint64) string { return fmt.Sprintf("%.2fm", float64(nano)/1e6) }

// podFixed prints the overhead to declare in a RuntimeClass.
func podFixed(w io.Writer, name string, o *adminv1.Overhead) error {
	live := o.GetLive()
	if live == nil {
		return fmt.Errorf("no data: %s", o.GetNoLiveReason())
	}
	e := overhead.Estimate{Memory: overhead.Distribution{P95: live.GetMemoryBytes().GetP95()}, CPU: overhead.Distribution{P95: live.GetCpuNanocores().GetP95()}}
	fixed := map[string]string{}
	if n := e.Fixed().CPU; n > 0 {
		fixed["cpu"] = fmt.Sprintf("%dm", n)
	}
	if n := e.Fixed().Memory; n > 0 {
		fixed["memory"] = fmt.Sprintf("%dMi", n>>20)
	}
	unknown := ""
	if live.GetCpuNanocores() == nil {
		unknown = "; their CPU use is not measured yet"
	}
	fmt.Fprintf(w, "# p95 of handler %s, pods measured: %s, %s%s\n", name, podsCell(live), live.GetMeasuredAt().AsTime().Format(time.RFC3339), unknown)
	return output.Encode(w, "yaml", map[string]any{"overhead": map[string]any{"podFixed": fixed}}, nil)
}
