package node

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// printStarts prints how the last pods came up, the slowest first.
func printStarts(ctx context.Context, r *cli.Remote, c *cobra.Command, daemon *client.Client, handler string) error {
	resp, err := daemon.ListStarts(ctx, &adminv1.ListStartsRequest{Handler: handler})
	if err != nil {
		return err
	}
	slices.SortStableFunc(resp.GetStarts(), func(a, b *adminv1.PodStart) int {
		return int(b.GetTook().AsDuration() - a.GetTook().AsDuration())
	})
	return r.Print(c.OutOrStdout(), resp, startTable(resp.GetStarts(), r.Wide()).Write)
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
	}
	return t
}

// verbs are what a pod's calls do.
var verbs = map[string]string{"RunPodSandbox": "sandbox", "PullImage": "pull", "CreateContainer": "create", "StartContainer": "start"}

// spentIn names the calls that took a tenth of the time or more, the longest first; or
// all of them, in their order.
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
