package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// whereIsCommand makes "berth whereis".
func whereIsCommand() *cobra.Command {
	r := &remote{timeout: callTimeout}
	c := &cobra.Command{
		Use:   "whereis ID",
		Short: "Show the handler, backend and binary of a pod or container",
		Long: `Show the handler, backend and binary of a pod sandbox or container, and whether a new
pod would get the same. A prefix of the ID is enough.`,
		Args: cobra.ExactArgs(1),
		RunE: r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			// As crictl prints it, and as the cluster does: berth://<id>.
			id := args[0]
			if _, rest, ok := strings.Cut(id, "://"); ok {
				id = rest
			}
			resp, err := daemon.WhereIs(ctx, &adminv1.WhereIsRequest{Id: id})
			if err != nil {
				return err
			}
			return r.print(c.OutOrStdout(), resp, func(w io.Writer) error { return showPlace(w, resp) })
		}),
	}
	r.flags(c)
	return c
}

func showPlace(w io.Writer, at *adminv1.WhereIsResponse) error {
	p, pin := at.GetPod(), at.GetPod().GetPin()
	lines := []struct{ what, text string }{
		{"sandbox", at.GetSandbox()},
		{"container", at.GetContainer()},
		{"pod", p.GetNamespace() + "/" + p.GetName()},
		{"uid", p.GetUid()},
		{"created", ago(p.GetCreatedAt().AsTime()) + ", " + p.GetCreatedAt().AsTime().Format(time.RFC3339)},
		{"handler", at.GetHandler()},
		{"backend", at.GetBackend()},
		{"definition", pin.GetDigest()},
		{"generation", generationWord(pin)},
		{"pin", map[string]string{
			"old":     "old: " + pin.GetOutdatedReason(),
			"current": "current: new pods of the handler get the same definition and binary",
			"?":       "not reported by the backend",
		}[pinWord(pin)]},
	}
	for _, b := range pin.GetBinaries() {
		lines = append(lines, []struct{ what, text string }{
			{"binary", strings.TrimSpace(b.GetPath() + " " + b.GetVersion())}, {"runs", b.GetRuns()}, {"sha256", b.GetDigest()},
		}...)
	}
	for _, line := range lines {
		if line.text == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-11s %s\n", line.what+":", line.text); err != nil {
			return err
		}
	}
	return nil
}
