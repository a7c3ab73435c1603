package node

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/doctor"
	"github.com/berth-cri/berth/pkg/lifecycle"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// DoctorCommand returns the command "berth doctor".
func DoctorCommand() *cobra.Command {
	form := ""
	var places config.Options
	root := ""
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node for problems that keep pods from running",
		Long: `Check this node: the configuration, runtimes, privileges, the kernel, cgroup drivers,
free space, CNI, registries in hosts.toml, NRI, sysctls, ports, the kubelet, kubeadm,
crictl and other CRI daemons. If the daemon runs, also check the last starts of pods,
and find supervisors and shims that do not respond. Nothing is changed.

Each warning and failure is printed with the next step. With -o wide, checks that are ok
are printed, too. The exit status is 3 if a check failed. Warnings alone give 0.`,
		Example: "  berth doctor\n  berth doctor -o wide\n  berth doctor --root /host -c /host/etc/berth/config.toml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			n := doctor.Node{Root: root}
			if n.Config, n.ConfigError = config.Start(places); n.ConfigError == nil && len(n.Config.Rejected) > 0 {
				n.ConfigError = n.Config.Rejected
			}
			found := doctor.Examine(n)
			if root == "" {
				found = append(found, running(c.Context(), found)...)
			}
			if err := output.Encode(c.OutOrStdout(), form, map[string]any{"findings": found, "worst": doctor.Worst(found)}, func(w io.Writer) error {
				return listFindings(w, found, form == "wide")
			}); err != nil {
				return err
			}
			if doctor.Worst(found) == doctor.Fail {
				return commandline.Found("some checks failed; see the findings above")
			}
			return nil
		},
	}
	cli.PlaceFlags(c, &places)
	output.Flag(c, &form, output.Forms...)
	c.Flags().StringVar(&root, "root", "", "`directory` where the root of the node to check is mounted, such as /host in a container; name its configuration with -c (the daemon is not asked)")
	return c
}

// running returns findings from the daemon, if it runs: handlers that are not ready, the last
// starts of each handler, and unresponsive processes of pods.
func running(ctx context.Context, already []doctor.Finding) []doctor.Finding {
	daemon, err := (&cli.Remote{}).Connect()
	if err != nil {
		return nil
	}
	defer daemon.Close()
	ctx, cancel := context.WithTimeout(ctx, cli.CallTimeout)
	defer cancel()
	resp, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return nil // the daemon does not need to run
	}
	found := append(notReady(resp.GetHandlers(), already), failedStarts(resp.GetHandlers())...)
	status, _ := daemon.GetStatus(ctx, &adminv1.GetStatusRequest{})
	for _, line := range status.GetUnresponsive() {
		text, next, _ := strings.Cut(line, "; ")
		found = append(found, doctor.Finding{Check: "supervisors", Level: doctor.Fail, Text: text, Next: next})
	}
	return found
}

// notReady returns findings for handlers that are not ready, except those with a failure in
// already. Pure.
func notReady(handlers []*adminv1.Handler, already []doctor.Finding) (found []doctor.Finding) {
	for _, h := range handlers {
		told := slices.ContainsFunc(already, func(f doctor.Finding) bool {
			return f.Level == doctor.Fail && strings.HasPrefix(f.Text, fmt.Sprintf("handler %q", h.GetName()))
		})
		if h.GetState() == adminv1.State_STATE_NOT_READY && !told {
			found = append(found, doctor.Finding{
				Check: "starts", Level: doctor.Fail, Text: fmt.Sprintf("handler %s is not ready: %s", h.GetName(), h.GetReason()), Next: "berth handler show " + h.GetName(),
			})
		}
	}
	return found
}

// failedStarts returns a finding on the last starts of each handler that had any. Pure.
func failedStarts(handlers []*adminv1.Handler) (found []doctor.Finding) {
	for _, h := range handlers {
		s := h.GetStarts()
		f := doctor.Finding{Check: "starts", Level: doctor.OK, Text: fmt.Sprintf("handler %s: %d of the last %d starts failed", h.GetName(), s.GetFailed(), s.GetRecent())}
		switch {
		case s.GetRecent() == 0:
			continue
		case s.GetInARow() >= lifecycle.FailuresInARow:
			f.Level = doctor.Fail
		case s.GetInARow() > 0:
			f.Level = doctor.Warn
		}
		if f.Level != doctor.OK {
			f.Text += ", the last one: " + s.GetError()
			f.Next = "berth handler show " + h.GetName()
		}
		found = append(found, f)
	}
	return found
}

func listFindings(w io.Writer, found []doctor.Finding, all bool) error {
	counts := map[doctor.Level]int{}
	for _, f := range found {
		counts[f.Level]++
		if f.Level == doctor.OK && !all {
			continue
		}
		fmt.Fprintf(w, "%-4s  %s: %s\n", f.Level, f.Check, f.Text)
		if f.Next != "" {
			fmt.Fprintf(w, "      → %s\n", f.Next)
		}
	}
	_, err := fmt.Fprintf(w, "%d ok, %d warnings, %d failures\n", counts[doctor.OK], counts[doctor.Warn], counts[doctor.Fail])
	return err
}
