package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// podsCommand makes "berth pods".
func podsCommand() *cobra.Command {
	r := &remote{timeout: callTimeout}
	name, slow := "", false
	c := &cobra.Command{
		Use:   "pods",
		Short: "List pods with the handler that each was created under",
		Long: `List pods with the handler that each was created under and keeps. PIN is "old" if new
pods of that handler would get another definition or another binary; "berth whereis"
shows the reason.

With --slow it lists how the last pods came up since the daemon's start, the slowest
first: what its calls took together, and the longest of them with the parts that they
spent the time in. Parts that were at the same time do not add up.`,
		Args: cobra.NoArgs,
		RunE: r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			if slow {
				return r.printStarts(ctx, c, daemon, name)
			}
			resp, err := daemon.ListPods(ctx, &adminv1.ListPodsRequest{Handler: name})
			if err != nil {
				return err
			}
			return r.print(c.OutOrStdout(), resp, func(w io.Writer) error { return podTable(resp.GetPods(), r.wide()).Write(w) })
		}),
	}
	r.flags(c)
	c.Flags().BoolVar(&slow, "slow", false, "show how the last pods came up, the slowest first")
	c.Flags().StringVar(&name, "handler", "", "show only pods of this handler")
	if err := c.RegisterFlagCompletionFunc("handler", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return r.handlerNames(c), cobra.ShellCompDirectiveNoFileComp
	}); err != nil {
		panic("berth: " + err.Error()) // the flag is there, and has none yet
	}
	return c
}

func podTable(pods []*adminv1.Pod, wide bool) *output.Table {
	t := &output.Table{Header: []string{"POD", "NAMESPACE", "NAME", "HANDLER", "STATE", "AGE", "CONTAINERS", "PIN"}, Whole: wide}
	if wide {
		t.Header = append(t.Header, "GENERATION", "DIGEST", "SNAPSHOTTER", "RUNTIME")
	}
	for _, p := range pods {
		id := short(p.GetId())
		if wide {
			id = p.GetId()
		}
		row := []string{
			id, p.GetNamespace(), p.GetName(), p.GetHandler(), map[bool]string{true: "ready", false: "not-ready"}[p.GetReady()],
			age(time.Since(p.GetCreatedAt().AsTime())), fmt.Sprint(p.GetContainers()), pinWord(p.GetPin()),
		}
		if wide {
			row = append(row, generationWord(p.GetPin()), short(p.GetPin().GetDigest()), p.GetPin().GetSnapshotter(), binaryWords(p.GetPin().GetBinaries()))
		}
		t.Add(row...)
	}
	return t
}

// binaryWords are the programs that a pod keeps, by where they were installed.
func binaryWords(binaries []*adminv1.Binary) string {
	var words []string
	for _, b := range binaries {
		words = append(words, strings.TrimSpace(b.GetPath()+" "+b.GetVersion()))
	}
	return strings.Join(words, ", ")
}

// generationWord is empty if it is not known.
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
