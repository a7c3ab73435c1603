package node

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// PodsCommand returns the command "berth pods".
func PodsCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	name, slow := "", false
	c := &cobra.Command{
		Use:   "pods",
		Short: "List pods with the handler that each was created under",
		Long: `List pods, and for each pod the handler that it was created under. A pod keeps its
handler. PIN is "old" if a new pod under the handler would get another definition or
binary; "berth whereis" shows the reason.

With --slow, list the last starts of pods, the slowest start first. Each line has the
total time of CRI calls, and the longest calls and steps. Steps can overlap.`,
		Example: "  berth pods -o wide\n  berth pods --handler gvisor -q\n  berth pods --slow",
		Args:    cobra.NoArgs,
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			if slow {
				return printStarts(ctx, r, c, daemon, name)
			}
			resp, err := daemon.ListPods(ctx, &adminv1.ListPodsRequest{Handler: name})
			if err != nil {
				return err
			}
			return r.Print(c.OutOrStdout(), resp, r.Table(podTable(resp.GetPods(), r.Wide())))
		}),
	}
	r.Flags(c)
	r.ListFlags(c, "the IDs of pods")
	c.Flags().BoolVar(&slow, "slow", false, "list the last starts of pods, the slowest first")
	r.HandlerFlag(c, &name, "show only pods of this handler")
	return c
}

func podTable(pods []*adminv1.Pod, wide bool) *output.Table {
	t := &output.Table{Header: []string{"POD", "NAMESPACE", "NAME", "HANDLER", "STATE", "AGE", "CONTAINERS", "PIN"}, Whole: wide}
	if wide {
		t.Header = append(t.Header, "GENERATION", "DIGEST", "SNAPSHOTTER", "RUNTIME")
	}
	for _, p := range pods {
		id := cli.Short(p.GetId())
		if wide {
			id = p.GetId()
		}
		row := []string{
			id, p.GetNamespace(), p.GetName(), p.GetHandler(), map[bool]string{true: "ready", false: "not-ready"}[p.GetReady()],
			cli.Age(time.Since(p.GetCreatedAt().AsTime())), fmt.Sprint(p.GetContainers()), pinWord(p.GetPin()),
		}
		if wide {
			row = append(row, generationWord(p.GetPin()), cli.Short(p.GetPin().GetDigest()), p.GetPin().GetSnapshotter(), binaryWords(p.GetPin().GetBinaries()))
		}
		t.Add(row...)
		t.Names = append(t.Names, p.GetId())
	}
	return t
}

// binaryWords lists the programs that a pod keeps, by their installed paths.
func binaryWords(binaries []*adminv1.Binary) string {
	var words []string
	for _, b := range binaries {
		words = append(words, strings.TrimSpace(b.GetPath()+" "+b.GetVersion()))
	}
	return strings.Join(words, ", ")
}

// generationWord returns "" for an unknown generation.
func generationWord(p *adminv1.Pin) string {
	if g := p.GetGeneration(); g > 0 {
		return strconv.FormatUint(g, 10)
	}
	return ""
}

func pinWord(p *adminv1.Pin) string {
	switch {
	case p == nil:
		return "?"
	case p.GetOutdated():
		return "old"
	}
	return "current"
}

func printStarts(ctx context.Context, r *cli.Remote, c *cobra.Command, daemon *client.Client, handler string) error {
	resp, err := daemon.ListStarts(ctx, &adminv1.ListStartsRequest{Handler: handler})
	if err != nil {
		return err
	}
	slices.SortStableFunc(resp.GetStarts(), func(a, b *adminv1.PodStart) int {
		return int(b.GetTook().AsDuration() - a.GetTook().AsDuration())
	})
	return r.Print(c.OutOrStdout(), resp, r.Table(startTable(resp.GetStarts(), r.Wide())))
}

func startTable(starts []*adminv1.PodStart, wide bool) *output.Table {
	t := &output.Table{Header: []string{"POD", "NAMESPACE", "NAME", "HANDLER", "AGE", "TOOK", "SPENT IN"}, Whole: wide}
	for _, s := range starts {
		id := s.GetSandbox()
		if !wide {
			id = cli.Short(id)
		}
		t.Add(id, s.GetNamespace(), s.GetName(), s.GetHandler(), cli.Age(time.Since(s.GetBeganAt().AsTime())),
			cli.Took(s.GetTook().AsDuration()), spentIn(s, wide))
		t.Names = append(t.Names, s.GetSandbox())
	}
	return t
}

// verbs are the short names of a pod's calls.
var verbs = map[string]string{"RunPodSandbox": "sandbox", "PullImage": "pull", "CreateContainer": "create", "StartContainer": "start"}

// spentIn lists the calls with at least a tenth of the total time, longest first. If all is set, it
// lists all calls in their order.
func spentIn(s *adminv1.PodStart, all bool) string {
	calls, least := slices.Clone(s.GetCalls()), s.GetTook().AsDuration()/10
	if all {
		least = 0
	} else {
		slices.SortStableFunc(calls, func(a, b *adminv1.StartCall) int { return int(b.GetTook().AsDuration() - a.GetTook().AsDuration()) })
	}
	var words []string
	for _, c := range calls {
		if c.GetTook().AsDuration() < least {
			continue
		}
		word := strings.TrimSpace(verbs[c.GetRpc()]+" "+c.GetOf()) + " " + cli.Took(c.GetTook().AsDuration())
		if c.GetCode() != "OK" {
			word += " " + c.GetCode()
		}
		var parts []string
		for _, p := range c.GetSteps() {
			if t := p.GetTook().AsDuration(); all || t >= c.GetTook().AsDuration()/10 {
				parts = append(parts, p.GetName()+" "+cli.Took(t))
			}
		}
		if len(parts) > 0 {
			word += " (" + strings.Join(parts, ", ") + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}
