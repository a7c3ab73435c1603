// Command kubectl-berth is "kubectl berth": it checks the handlers of a cluster's nodes,
// RuntimeClasses and pods. It only reads from the API server. Kubernetes' client is linked here and
// not into the daemon, which does not use it.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/manual"
	"github.com/berth-cri/berth/internal/output"
)

func main() {
	klog.SetLogger(logr.Discard()) // Kubernetes' client logs errors that it also returns
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	stdout, stderr := output.NewTerminal(os.Stdout), output.NewTerminal(os.Stderr)
	root := newRoot(genericiooptions.IOStreams{In: os.Stdin, Out: stdout, ErrOut: stderr})
	err := root.ExecuteContext(ctx)
	stop()
	os.Exit(commandline.Report(stderr, "error:", err))
}

func newRoot(streams genericiooptions.IOStreams) *cobra.Command {
	p := &program{
		IOStreams: streams,
		config:    genericclioptions.NewConfigFlags(true).WithDiscoveryQPS(discoveryQPS).WithDiscoveryBurst(discoveryBurst),
	}
	root := &cobra.Command{
		Use: "kubectl-berth",
		// Users run this plugin as "kubectl berth".
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
		Short:       "Show and check the runtime handlers of a cluster, and create classes for them",
		Long: `Show and check which runtime handlers the nodes of a cluster have, which RuntimeClasses
use them, and which pods they can run. No command changes the cluster: pipe the output
of "generate" and "policy" into "kubectl apply --server-side -f -". "lint" and "migrate"
need no cluster, nor do "generate" and "fit" with --handlers and "policy" with --classes.

Exit status: 0 if no problem was found, 3 if a problem was found, 2 if the command line or
a file is wrong (then nothing was done), 1 for any other failure.`,
		Example:       "  kubectl berth audit\n  kubectl berth generate | kubectl apply --server-side -f -",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	p.config.AddFlags(root.PersistentFlags())
	completes(root, "namespace", p.completeNames(namespaceNames))
	man := manual.Command("1", "kubectl-berth "+version)
	man.Hidden = true
	root.AddCommand((&auditCommand{program: p}).command(), (&fitCommand{program: p}).command(),
		(&policyCommand{program: p}).command(), (&generateCommand{program: p}).command(),
		(&lintCommand{program: p}).command(), (&migrateCommand{program: p}).command(),
		man)
	// kubectl completes its plugins by contrib/kubectl/kubectl_complete-berth.
	root.CompletionOptions.DisableDefaultCmd = true
	commandline.Check(root)
	root.PersistentPreRunE = rejectEmptyFiles
	return root
}

// rejectEmptyFiles rejects a file flag with an empty value, as from an unset variable in a script:
// the command would run as if without the flag.
func rejectEmptyFiles(c *cobra.Command, _ []string) error {
	for _, name := range []string{"handlers", "measurements", "rules"} {
		if f := c.Flags().Lookup(name); f != nil && f.Changed && f.Value.Type() == "string" && f.Value.String() == "" {
			return commandline.Misused(c, fmt.Errorf("--%s is empty", name))
		}
	}
	return nil
}

// version is set by the build.
var version = "0.0.0-dev"

// program is the common part of all commands.
type program struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
}

// note prints a remark that is not an error.
func (p *program) note(format string, args ...any) {
	fmt.Fprintf(p.ErrOut, "note: "+format+"\n", args...)
}

// printObjects prints objects for kubectl apply: in JSON as a List, in YAML as documents, each
// below its comment.
func printObjects[T any](p *program, form string, objects []T, comments []string) error {
	if form == "json" {
		return output.Encode(p.Out, form, map[string]any{"apiVersion": "v1", "kind": "List", "items": objects}, nil)
	}
	var b bytes.Buffer
	for i, one := range objects {
		text, err := yaml.Marshal(one)
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		if comments != nil {
			fmt.Fprintf(&b, "# %s\n", comments[i])
		}
		b.Write(text)
	}
	_, err := p.Out.Write(b.Bytes())
	return err
}
