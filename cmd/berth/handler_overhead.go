package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/overhead"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func handlerOverheadCommand() *cobra.Command {
	r := &remote{}
	var pods int32
	var window time.Duration
	asYAML := false
	c := &cobra.Command{
		Use:   "overhead [NAME]",
		Short: "Measure what a handler's pods use beyond their containers",
		Long: fmt.Sprintf(`Measure what a handler's pods use beyond their containers: memory and CPU of their
sandbox processes, shims, supervisors and VMMs. With --pods, that many self-check pods
run at the same time, at most %d; they count towards the handler's limits, and are
removed afterwards, also after an interrupt. Without --pods, existing pods are measured.
Without a name, all known measurements are shown; with -o yaml they are a file for
--measurements of "kubectl berth". The exit status is 3 if p95 is above what the kubelet
reserves for the handler's pods, which is marked as exceeded; --yaml prints what to
reserve, and exits with 0.`, overhead.MaxPods),
		Example: "  berth handler overhead kata --pods 10\n  berth handler overhead kata --yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			if len(args) == 0 {
				if pods != 0 || asYAML {
					return misused(c, errors.New("--pods and --yaml need the name of a handler"))
				}
				return r.showOverheads(ctx, c.OutOrStdout(), daemon)
			}
			o, err := measureOverhead(ctx, c.ErrOrStderr(), daemon, &adminv1.MeasureOverheadRequest{Name: args[0], Pods: pods, Window: durationpb.New(window)})
			if err != nil {
				return err
			}
			if asYAML { // it is how to mend that p95 is above
				return podFixed(c.OutOrStdout(), args[0], o)
			}
			if err := r.print(c.OutOrStdout(), o, func(w io.Writer) error { return showOverhead(w, args[0], o, r.wide()) }); err != nil {
				return err
			}
			if o.GetWarning() != "" {
				return degraded("%s", o.GetWarning())
			}
			return nil
		}),
		ValidArgsFunction: r.completeHandlers,
	}
	r.flags(c)
	c.Flags().Int32Var(&pods, "pods", 0, "number of self-check pods to run and measure")
	c.Flags().DurationVar(&window, "window", overhead.DefaultWindow, "how long to measure CPU use")
	c.Flags().BoolVar(&asYAML, "yaml", false, "print overhead.podFixed of a RuntimeClass")
	c.MarkFlagsMutuallyExclusive("yaml", "output")
	return c
}

// measureOverhead shows how far it has come.
func measureOverhead(ctx context.Context, to io.Writer, daemon *client.Client, req *adminv1.MeasureOverheadRequest) (*adminv1.Overhead, error) {
	stream, err := daemon.MeasureOverhead(ctx, req)
	if err != nil {
		return nil, err
	}
	p := newProgress(to)
	defer p.end()
	for {
		resp, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if resp.GetOverhead() != nil {
			return resp.GetOverhead(), nil
		}
		p.step("%s", stepLine(resp, p.width))
	}
}

// barWidth is how long a bar is on a terminal that has room.
const barWidth = 30

// stepLine is a step with a bar, on a terminal, for what is done pod by pod. Pure.
func stepLine(s *adminv1.MeasureOverheadResponse, width int) string {
	pods := output.Pods(s.GetAll())
	if s.GetAll() == 1 {
		pods = "1 pod"
	}
	if s.GetStep() != "starting" {
		return s.GetStep() + " " + pods
	}
	if width < 2*barWidth || s.GetAll() == 0 {
		return fmt.Sprintf("starting pod %d of %d", s.GetDone()+1, s.GetAll())
	}
	bar := make([]rune, barWidth)
	for i := range bar {
		bar[i] = '░'
		if int32(i)*s.GetAll() < s.GetDone()*barWidth { //nolint:gosec // it is small
			bar[i] = '█'
		}
	}
	return fmt.Sprintf("starting %s %d of %d pods", string(bar), s.GetDone(), s.GetAll())
}

// measuredHandler is a handler in a file of handlers, as "kubectl berth" and
// "kubectl berth" read it.
type measuredHandler struct {
	Name     string       `json:"name"`
	Overhead *measurement `json:"overhead,omitempty"`
}

type measurement struct {
	Pods   int32        `json:"pods"`
	Memory distribution `json:"memory"`
	// CPU is nil if it is not known yet.
	CPU *distribution `json:"cpu,omitempty"`
}

type distribution struct {
	P50 string `json:"p50"`
	P95 string `json:"p95"`
	Max string `json:"max"`
	// Pods is nil if it is the measurement's.
	Pods   *int32 `json:"pods,omitempty"`
	Source string `json:"source,omitempty"`
}

// measurementOf writes bytes, and billionths of a core, as Kubernetes does.
func measurementOf(e *adminv1.OverheadEstimate) *measurement {
	if e == nil {
		return nil
	}
	in := func(unit, source string, d *adminv1.OverheadDistribution) distribution {
		text := func(n uint64) string {
			if n == 0 {
				return "0"
			}
			return fmt.Sprint(n) + unit
		}
		return distribution{P50: text(d.GetP50()), P95: text(d.GetP95()), Max: text(d.GetMax()), Source: source}
	}
	m := &measurement{Pods: e.GetPods(), Memory: in("", e.GetMemorySource(), e.GetMemoryBytes())}
	if e.GetCpuNanocores() != nil {
		cpu := in("n", e.GetCpuSource(), e.GetCpuNanocores())
		if n := e.GetCpuPods(); n != e.GetPods() {
			cpu.Pods = &n
		}
		m.CPU = &cpu
	}
	return m
}

func (r *remote) showOverheads(ctx context.Context, w io.Writer, daemon *client.Client) error {
	list, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return err
	}
	t := overheadTable("HANDLER", r.wide())
	handlers, above := []measuredHandler{}, []string(nil)
	for _, h := range list.GetHandlers() {
		resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: h.GetName()})
		if status.Code(err) == codes.NotFound {
			continue // it went meanwhile
		}
		if err != nil {
			return err
		}
		o := resp.GetOverhead()
		handlers = append(handlers, measuredHandler{h.GetName(), measurementOf(o.GetBest())})
		addOverhead(t, h.GetName(), o.GetBest(), o)
		if o.GetWarning() != "" {
			above = append(above, o.GetWarning())
		}
	}
	if err := encode(w, r.output, map[string]any{"handlers": handlers}, t.write); err != nil {
		return err
	}
	if len(above) > 0 {
		return degraded("%s", strings.Join(above, "\n"))
	}
	return nil
}

func showOverhead(w io.Writer, name string, o *adminv1.Overhead, wide bool) error {
	if o.GetBest() == nil {
		_, err := fmt.Fprintf(w, "no data: %s; measure self-check pods by \"berth handler overhead %s --pods 10\"\n", o.GetNoLiveReason(), name)
		return err
	}
	t := overheadTable("PODS OF", wide)
	if o.GetLive() != nil {
		addOverhead(t, "handler", o.GetLive(), o)
	}
	if o.GetCanary() != nil {
		addOverhead(t, "berth", o.GetCanary(), o)
	}
	if err := t.write(w); err != nil || o.GetLive() == nil || o.GetCanary() == nil {
		return err
	}
	_, err := fmt.Fprintf(w, "the larger p95 is used: %s\n", podsCell(o.GetBest()))
	return err
}

func overheadTable(first string, wide bool) *table {
	return &table{header: []string{first, "PODS", "MEMORY P50", "P95", "MAX", "CPU P50", "P95", "MAX", "DECLARED", "MEASURED"}, whole: wide}
}

func addOverhead(t *table, first string, e *adminv1.OverheadEstimate, o *adminv1.Overhead) {
	row := []string{first, podsCell(e)}
	if e == nil {
		t.add(append(row, "-", "-", "-", "-", "-", "-", declaredCell(o), "no data: "+o.GetNoLiveReason())...)
		return
	}
	memory, cpu := e.GetMemoryBytes(), e.GetCpuNanocores()
	row = append(row, mebibytes(memory.GetP50()), mebibytes(memory.GetP95()), mebibytes(memory.GetMax()))
	if cpu == nil {
		row = append(row, "-", "-", "-")
	} else {
		row = append(row, millicores(cpu.GetP50()), millicores(cpu.GetP95()), millicores(cpu.GetMax()))
	}
	t.add(append(row, declaredCell(o), ago(e.GetMeasuredAt().AsTime()))...)
}

// podsCell says how many were measured, and in the best of two measurements whose.
func podsCell(e *adminv1.OverheadEstimate) string {
	memory, cpu := fmt.Sprint(e.GetPods(), " ", e.GetMemorySource()), fmt.Sprint(e.GetCpuPods(), " ", e.GetCpuSource())
	if e.GetCpuSource() == "" || cpu == memory {
		return strings.TrimSpace(memory)
	}
	return fmt.Sprintf("%s, CPU %s", memory, cpu)
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

// podFixed prints what a RuntimeClass should declare.
func podFixed(w io.Writer, name string, o *adminv1.Overhead) error {
	best := o.GetBest()
	if best == nil {
		return fmt.Errorf("no data: %s; measure self-check pods by \"berth handler overhead %s --pods 10 --yaml\"", o.GetNoLiveReason(), name)
	}
	e := overhead.Estimate{Memory: overhead.Distribution{P95: best.GetMemoryBytes().GetP95()}, CPU: overhead.Distribution{P95: best.GetCpuNanocores().GetP95()}}
	fixed := e.Fixed()
	unknown := ""
	if best.GetCpuNanocores() == nil {
		unknown = "; their CPU use is not measured yet"
	}
	fmt.Fprintf(w, "# p95 of handler %s, pods measured: %s, %s%s\noverhead:\n  podFixed:", name, podsCell(best), best.GetMeasuredAt().AsTime().Format(time.RFC3339), unknown)
	if fixed == (overhead.Declared{}) {
		fmt.Fprint(w, " {}")
	}
	if fixed.CPU > 0 {
		fmt.Fprintf(w, "\n    cpu: %dm", fixed.CPU)
	}
	if fixed.Memory > 0 {
		fmt.Fprintf(w, "\n    memory: %dMi", fixed.Memory>>20)
	}
	_, err := fmt.Fprintln(w)
	return err
}
