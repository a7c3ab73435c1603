// Package classcmd is the tree of "berth runtimeclass": names, flags and help. What
// its commands do is elsewhere, so that a program can have the tree and leave the
// work, with all that it needs to be linked to, to another one.
package classcmd

import (
	"context"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-cri/berth/cmd/internal/adminsocket"
	"github.com/berth-cri/berth/cmd/internal/output"
)

// Exit codes. They are those of linters: that something was found is no failure.
const (
	// Findings: the command did its work, and something is not as it should be.
	Findings = 1
	// Wrong: the command line, or a file, is wrong. Nothing was done.
	Wrong = 2
)

// Name of the command, and of the program that does the work.
const (
	Name    = "runtimeclass"
	Program = "berth-runtimeclass"
)

// Call is one command line.
type Call struct {
	// Command is "lint", "migrate" and so on.
	Command string
	// Arguments are those that are no flags.
	Arguments []string
	Flags     Flags
	// Given are the flags that were given, as they can be given again.
	Given []string

	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Line is the command line that makes the same Call.
func (c Call) Line() []string {
	return append(append(append([]string{c.Command}, c.Given...), "--"), c.Arguments...)
}

// Flags are those of all commands. Each has some of them.
type Flags struct {
	AdminSocket  string
	Handlers     string
	Measurements string
	Output       string

	AnyNode     bool
	Tolerations []string

	Live    bool
	Against []string
	Strict  bool

	Rename []string
	Write  bool

	Classes []string
	Prefer  string
}

// Run does the work of a Call. An Exit among its errors is the exit code.
type Run func(context.Context, Call) error

// Misused makes an error of a mistake in the command line.
type Misused func(*cobra.Command, error) error

// Exit is an error with an exit code of its own.
type Exit struct {
	Code int
	// Err is nil if all is said.
	Err error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return "exit status " + strconv.Itoa(e.Code)
	}
	return e.Err.Error()
}

func (e *Exit) Unwrap() error { return e.Err }

// New makes the tree.
func New(run Run, misused Misused) *cobra.Command {
	c := &cobra.Command{
		Use:   Name,
		Short: "Make, check and try RuntimeClasses, and find handlers for pods",
		Long: `Make, check and try RuntimeClasses, and find handlers for pods, without a cluster.
Manifests are read from files, or from standard input as "-": YAML or JSON, one
document or many, lists included. Pods are also those of Deployments, StatefulSets,
DaemonSets, ReplicaSets, ReplicationControllers, Jobs, CronJobs and PodTemplates.

Exit status: 0 if nothing was found, 1 if something was, 2 if the command line or a
file is wrong; then nothing was done.`,
		Args: cobra.NoArgs,
	}
	t := &tree{run, misused}
	c.AddCommand(t.generate(), t.lint(), t.migrate(), t.simulate(), t.fit())
	return c
}

type tree struct {
	run     Run
	misused Misused
}

// does has a command call run with its flags.
func (t *tree) does(c *cobra.Command, f *Flags) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		return t.run(c.Context(), Call{
			Command: c.Name(), Arguments: args, Flags: *f, Given: given(c.Flags()),
			Stdin: c.InOrStdin(), Stdout: c.OutOrStdout(), Stderr: c.ErrOrStderr(),
		})
	}
	return c
}

// given writes the flags that were given as they can be given again.
func given(flags *pflag.FlagSet) []string {
	var all []string
	flags.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if many, ok := f.Value.(pflag.SliceValue); ok {
			values = many.GetSlice()
		}
		for _, v := range values {
			all = append(all, "--"+f.Name+"="+v)
		}
	})
	return all
}

func (f *Flags) handlers(c *cobra.Command, instead string) {
	c.Flags().StringVar(&f.Handlers, "handlers", "", "names with commas between them, or a `FILE` of handlers, "+instead)
	c.Flags().StringVar(&f.AdminSocket, "admin-socket", "", adminsocket.Usage)
	c.Flags().StringVar(&f.Measurements, "measurements", "", "`FILE` of handlers with the overhead that was measured")
}

func (t *tree) generate() *cobra.Command {
	f := &Flags{}
	c := &cobra.Command{
		Use:   "generate [HANDLER]...",
		Short: "Print a RuntimeClass for each handler",
		Long: `Print a RuntimeClass for each handler of the running daemon that takes pods, or for
those that are named. Its overhead is what was measured: p95, rounded up. Without
measurements it has none. It selects nodes by the label that "ready" handlers have
by Node Feature Discovery, feature.node.kubernetes.io/handler.NAME=ready.`,
		Example: "  berth runtimeclass generate\n  berth runtimeclass generate kata --toleration sandboxes:NoSchedule | kubectl apply -f -\n" +
			"  berth runtimeclass generate --handlers runc,kata --any-node",
	}
	f.handlers(c, "instead of those of the running daemon")
	c.Flags().StringArrayVar(&f.Tolerations, "toleration", nil, "`KEY[=VALUE][:EFFECT]` of taints that the pods tolerate; may be repeated")
	c.Flags().BoolVar(&f.AnyNode, "any-node", false, "select no nodes")
	output.Flag(c, &f.Output, t.misused, "yaml", "json")
	return t.does(c, f)
}

func (t *tree) lint() *cobra.Command {
	f := &Flags{}
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Find what is wrong with RuntimeClasses",
		Long: `Find what is wrong with RuntimeClasses: what the API server would refuse, in its
words; versions that it has no more; handlers that there are not or that take no
pods, by --live or --handlers; handlers that would change, by --against; overhead
that is less than what was measured, by --handlers or --measurements. Warnings do
not count, unless --strict is given.`,
		Example: "  berth runtimeclass lint classes.yaml --live\n  kubectl get runtimeclass -o yaml >now.yaml && berth runtimeclass lint next.yaml --against now.yaml",
		Args:    cobra.MinimumNArgs(1),
	}
	f.handlers(c, "that there are")
	c.Flags().BoolVar(&f.Live, "live", false, "look for handlers in the running daemon")
	c.Flags().StringArrayVar(&f.Against, "against", nil, "`FILE` of the classes that the cluster has; may be repeated")
	c.Flags().BoolVar(&f.Strict, "strict", false, "count warnings")
	output.Flag(c, &f.Output, t.misused, output.Forms...)
	return t.does(c, f)
}

func (t *tree) migrate() *cobra.Command {
	f := &Flags{}
	c := &cobra.Command{
		Use:   "migrate FILE...",
		Short: "Rewrite RuntimeClasses of old versions to node.k8s.io/v1",
		Long: `Rewrite RuntimeClasses of v1beta1 and v1alpha1 to node.k8s.io/v1, and print the file.
Comments and order stay. Handlers that v1 does not allow, which are empty ones and
those with dots, get another name by --handler; without one nothing is written.`,
		Example: "  berth runtimeclass migrate old.yaml >new.yaml\n  berth runtimeclass migrate --write *.yaml --handler kata.v2=kata-v2 --handler =runc",
		Args:    cobra.MinimumNArgs(1),
	}
	c.Flags().StringArrayVar(&f.Rename, "handler", nil, "`OLD=NEW` name of a handler; OLD may be empty; may be repeated")
	c.Flags().BoolVarP(&f.Write, "write", "w", false, "write the files instead of printing; all of them or none")
	return t.does(c, f)
}

func (t *tree) simulate() *cobra.Command {
	f := &Flags{}
	c := &cobra.Command{
		Use:   "simulate FILE...",
		Short: "Say what the RuntimeClass admission makes of pods",
		Long: `Say what the RuntimeClass admission of an API server makes of pods: the overhead,
node selector and tolerations that their class gives them, or why they are refused,
in its words. Classes are those of the files and of --classes. -o yaml and -o json
have the pods as they are admitted.`,
		Example: "  berth runtimeclass simulate deployment.yaml --classes classes.yaml\n  kubectl get runtimeclass -o yaml | berth runtimeclass simulate pod.yaml -",
		Args:    cobra.MinimumNArgs(1),
	}
	f.classes(c)
	output.Flag(c, &f.Output, t.misused, output.Forms...)
	return t.does(c, f)
}

func (t *tree) fit() *cobra.Command {
	f := &Flags{}
	c := &cobra.Command{
		Use:   "fit FILE...",
		Short: "Say which handlers can run pods, and which cannot and why",
		Long: `Say which handlers of the running daemon can run pods, which cannot and why, the one
to prefer first. What is not known about a handler is told as unknown. If the class of
a pod is among those of --classes or of the files, and the API server would refuse the
pod, the handler of its class does not fit. The exit status is 1 if there is a pod that
no handler fits.`,
		Example: "  berth runtimeclass fit pod.yaml\n  berth runtimeclass fit pod.yaml --handlers handlers.yaml --prefer overhead -o json",
		Args:    cobra.MinimumNArgs(1),
	}
	f.handlers(c, "instead of those of the running daemon")
	f.classes(c)
	c.Flags().StringVar(&f.Prefer, "prefer", "isolation", "what comes first: the strongest isolation, or the least overhead")
	output.Flag(c, &f.Output, t.misused, output.Forms...)
	return t.does(c, f)
}

func (f *Flags) classes(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.Classes, "classes", nil, "`FILE` of classes; may be repeated")
}
