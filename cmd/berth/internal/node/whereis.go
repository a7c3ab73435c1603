package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// WhereIsCommand returns the command "berth whereis".
func WhereIsCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	c := &cobra.Command{
		Use:   "whereis POD|CONTAINER",
		Short: "Show the handler, backend and binary of a pod or container",
		Long: `Show the handler, backend and binary of a pod or container. Also show whether a new pod
would get the same handler, backend and binary. Name a pod by NAMESPACE/NAME or by its
ID, and a container by its ID. A prefix of an ID is enough.`,
		Example: "  berth whereis default/web-0\n  berth whereis 3f2a9c41b7de",
		Args:    cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			// The ID may have the form of crictl or that of the cluster, berth://<id>.
			id := args[0]
			if _, rest, ok := strings.Cut(id, "://"); ok {
				id = rest
			}
			if strings.Contains(id, "/") {
				var err error
				if id, err = podNamed(ctx, daemon, id); err != nil {
					return err
				}
			}
			resp, err := daemon.WhereIs(ctx, &adminv1.WhereIsRequest{Id: id})
			if err != nil {
				return err
			}
			return r.Print(c.OutOrStdout(), resp, output.Fields(place(resp)))
		}),
	}
	r.Flags(c)
	return c
}

// podNamed returns the ID of a pod: of several with one name, a ready one, otherwise the newest.
func podNamed(ctx context.Context, daemon *client.Client, name string) (string, error) {
	all, err := daemon.ListPods(ctx, &adminv1.ListPodsRequest{})
	if err != nil {
		return "", err
	}
	var found *adminv1.Pod
	for _, p := range all.GetPods() {
		if p.GetNamespace()+"/"+p.GetName() == name && (p.GetReady() || !found.GetReady()) {
			found = p
		}
	}
	if found == nil {
		return "", fmt.Errorf("no pod %q is on this node; \"berth pods\" lists the pods", name)
	}
	return found.GetId(), nil
}

func place(at *adminv1.WhereIsResponse) [][2]string {
	p, pin := at.GetPod(), at.GetPod().GetPin()
	fields := [][2]string{
		{"sandbox", at.GetSandbox()},
		{"container", at.GetContainer()},
		{"pod", p.GetNamespace() + "/" + p.GetName()},
		{"uid", p.GetUid()},
		{"created", cli.Ago(p.GetCreatedAt().AsTime()) + ", " + p.GetCreatedAt().AsTime().Format(time.RFC3339)},
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
		fields = append(fields, [2]string{"binary", strings.TrimSpace(b.GetPath() + " " + b.GetVersion())},
			[2]string{"runs", b.GetRuns()}, [2]string{"sha256", b.GetDigest()})
	}
	return fields
}
