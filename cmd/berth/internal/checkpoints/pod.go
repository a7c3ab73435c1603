package checkpoints

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// PodCommand returns the command "berth pod".
func PodCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "pod",
		Short: "Checkpoint and restore pods",
		Long: `Checkpoint and restore pods through the CRI. Both need a handler with the capability
"pod-checkpoint" ("berth capabilities").`,
		Example: "  berth pod checkpoint default/notebook --as notebook\n  berth pod restore notebook --name notebook-2",
	}
	c.AddCommand(podCheckpointCommand(), podRestoreCommand())
	return c
}

// checkpointTimeout bounds a checkpoint or restore. Its duration depends on the disk.
const checkpointTimeout = 10 * time.Minute

type checkpointed struct {
	to, as            string
	replace, compress bool
}

func podCheckpointCommand() *cobra.Command {
	r := &cli.Remote{Timeout: checkpointTimeout}
	o := &checkpointed{}
	c := &cobra.Command{
		Use:   "checkpoint POD",
		Short: "Checkpoint a running pod into a directory",
		Long: `Checkpoint a pod with all its running containers. The checkpoint is written to a new or
empty directory. The default is a new directory in pod-checkpoints below engine.root, where
"berth checkpoint prune" removes old checkpoints that have no name (--as). POD is the ID of
the pod's sandbox, a prefix of the ID, or NAMESPACE/NAME.

The pod is paused during the checkpoint. The checkpoint contains every secret that the
pod has in memory.`,
		Example: "  berth pod checkpoint default/notebook\n  berth pod checkpoint default/notebook --to /var/lib/checkpoints/notebook\n  berth pod checkpoint default/notebook --as shop/notebook",
		Args:    cobra.ExactArgs(1),
		RunE: r.CallCRI(func(ctx context.Context, c *cobra.Command, cri cli.CRI, args []string) error {
			if o.as == "" && (o.replace || c.Flags().Changed("as")) {
				return commandline.Wrong(errors.New("name the checkpoint: --as NAME"))
			}
			l, took, err := checkpointPod(ctx, r, c, cri, args[0], o)
			if err != nil {
				return err
			}
			return output.Encode(c.OutOrStdout(), r.Output, l, output.Line("%s: %s, containers %s, in %s",
				cmp.Or(l.Name, l.Directory), cli.Size(l.Size), strings.Join(l.Containers, ", "), took.Round(time.Millisecond)))
		}),
	}
	r.Flags(c)
	c.Flags().BoolVar(&o.compress, "compress", false, "compress the checkpoint; to write and to restore a compressed checkpoint takes longer")
	c.Flags().StringVar(&o.to, "to", "", "`directory` to write into (default: a new directory in pod-checkpoints below engine.root)")
	c.Flags().StringVar(&o.as, "as", "", "`name` of the checkpoint on this node, such as shop/notebook")
	c.Flags().BoolVar(&o.replace, "replace", false, "move the name if another checkpoint has it")
	c.MarkFlagsMutuallyExclusive("as", "to")
	c.MarkFlagsMutuallyExclusive("replace", "to")
	c.Flags().DurationVar(&r.Timeout, "timeout", r.Timeout, "time limit of the command")
	return c
}

// checkpointPod writes a pod's checkpoint into a directory, and returns it and the duration.
func checkpointPod(ctx context.Context, r *cli.Remote, c *cobra.Command, cri cli.CRI, name string, o *checkpointed) (l listedCheckpoint, took time.Duration, err error) {
	p, err := findPod(ctx, cri, name)
	if err != nil {
		return l, 0, err
	}
	id := p.GetId()
	running, err := cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		PodSandboxId: id, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return l, 0, err
	}
	request := &runtimeapi.CheckpointPodRequest{PodSandboxId: id}
	for _, one := range running.GetContainers() {
		request.ContainerIds = append(request.ContainerIds, one.GetId())
	}
	if len(request.ContainerIds) == 0 {
		return l, 0, fmt.Errorf("no container runs in pod %s", name)
	}
	if o.compress {
		request.Options = map[string]string{"compression": "flate-best-speed"}
	}
	dir, err := filepath.Abs(o.to)
	if o.to == "" {
		dir, err = daemonsDirectory(r, c)
	}
	if err == nil && o.to == "" {
		dir, err = directory.Path(dir, p.GetMetadata().GetNamespace(), p.GetMetadata().GetName(), o.as, o.replace, time.Now())
	}
	if err != nil {
		return l, 0, err
	}
	err = os.Mkdir(dir, 0o700)
	if err != nil && o.to == "" {
		return l, 0, err
	}
	made := err == nil
	release, err := directory.Use(dir)
	if err != nil {
		return l, 0, err
	}
	defer release()
	request.OutputPath = dir
	shown := cli.NewProgress(c.ErrOrStderr())
	begin, done := time.Now(), shown.Every(sizeInterval, func() { shown.Step("%s written", cli.Size(sizeOf(dir))) })
	_, err = cri.CheckpointPod(ctx, request)
	done()
	if err != nil {
		if made {
			err = errors.Join(err, os.Remove(dir))
		}
		return l, 0, err
	}
	m, err := manifest.Read(dir)
	if err != nil {
		return l, 0, err
	}
	if l, err = listed(dir, m); err == nil && o.as != "" {
		l.Name, err = o.as, directory.Name(dir, o.as, o.replace)
	}
	return l, time.Since(begin), err
}

// sizeInterval is the time between progress reports of a checkpoint.
const sizeInterval = 500 * time.Millisecond

// sizeOf returns the current size of a checkpoint, as far as it is readable.
func sizeOf(dir string) (total int64) {
	_ = filepath.WalkDir(filepath.Join(dir, manifest.ImagesDir), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil //nolint:nilerr // files may appear and disappear
		}
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	return total
}

// findPod returns the sandbox with an ID, or a prefix of it, or the ready sandbox with a name.
func findPod(ctx context.Context, cri cli.CRI, name string) (*runtimeapi.PodSandbox, error) {
	all, err := cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	var found []*runtimeapi.PodSandbox
	var ids []string
	for _, p := range all.GetItems() {
		named := p.GetMetadata().GetNamespace()+"/"+p.GetMetadata().GetName() == name
		if named && p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY || !named && strings.HasPrefix(p.GetId(), name) {
			found, ids = append(found, p), append(ids, p.GetId())
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no pod %q is ready on this node; \"berth pods\" lists the pods", name)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%q matches more than one pod: %s; give more of the ID", name, strings.Join(ids, ", "))
}

type restored struct {
	name, namespace, uid, handler, logs, cgroup string
	created, replace                            bool
}

func podRestoreCommand() *cobra.Command {
	r := &cli.Remote{Timeout: checkpointTimeout}
	as := &restored{}
	c := &cobra.Command{
		Use:   "restore CHECKPOINT",
		Short: "Restore a pod from a checkpoint",
		Long: `Restore a pod from a checkpoint, with a new ID and address, and resume its containers.
Give --name with an unused name, or --replace: it removes the old pods with the restored
pod's namespace and name, and their logs in /var/log/pods, once the new pod can start. A
running kubelet stops the restored pod, because the cluster does not have it.`,
		Example: "  berth pod restore shop/notebook --name notebook-2\n  berth pod restore /var/lib/checkpoints/notebook --replace",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: completeNames(r),
		RunE: r.CallCRI(func(ctx context.Context, c *cobra.Command, cri cli.CRI, args []string) error {
			return restorePod(ctx, r, c, cri, args[0], as)
		}),
	}
	r.Flags(c)
	c.Flags().StringVar(&as.name, "name", "", "name of the pod (default with --replace: as in the checkpoint)")
	c.Flags().BoolVar(&as.replace, "replace", false, "remove the node's pods with the restored pod's namespace and name")
	c.MarkFlagsOneRequired("name", "replace")
	c.Flags().StringVar(&as.namespace, "namespace", "", "namespace of the pod (default: as in the checkpoint)")
	c.Flags().StringVar(&as.uid, "uid", "", "UID of the pod (default: a new one)")
	c.Flags().StringVar(&as.cgroup, "cgroup-parent", "", "`cgroup` of the pod, created if missing (default: a cgroup below berth's, without limits for the pod)")
	c.Flags().StringVar(&as.logs, "log-directory", "", "`directory` for the containers' logs (default: /var/log/pods/NAMESPACE_NAME_UID)")
	c.Flags().BoolVar(&as.created, "no-start", false, "create the containers without starting them")
	c.Flags().DurationVar(&r.Timeout, "timeout", r.Timeout, "time limit of the command")
	r.HandlerFlag(c, &as.handler, "handler to run the pod under (default: as in the checkpoint)")
	return c
}

type restoredPod struct {
	Pod        string              `json:"pod"`
	Containers []restoredContainer `json:"containers"`
	Started    bool                `json:"started"`
}

type restoredContainer struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func restorePod(ctx context.Context, r *cli.Remote, c *cobra.Command, cri cli.CRI, from string, as *restored) error {
	dir, err := locate(r, c, from)
	if err != nil {
		return err
	}
	release, err := directory.Use(dir)
	if err != nil {
		return err
	}
	defer release()
	m, err := manifest.Read(dir)
	if err != nil {
		return err
	}
	request, err := requestOf(m, as)
	if err != nil {
		return err
	}
	request.CheckpointPath = dir
	metadata := request.GetConfig().GetMetadata()
	old, err := namesakes(ctx, cri, metadata)
	if err != nil {
		return err
	}
	if len(old) > 0 && !as.replace {
		return fmt.Errorf("pod %s/%s exists on this node; give another --name, or use --replace", metadata.GetNamespace(), metadata.GetName())
	}
	begin := time.Now()
	resp, err := cri.RestorePod(ctx, request)
	if err != nil {
		return errors.Join(err, removeLogs(metadata))
	}
	for _, p := range old {
		if err := errors.Join(removePod(ctx, cri, p.GetId()), removeLogs(p.GetMetadata())); err != nil {
			return errors.Join(err, removePod(ctx, cri, resp.GetPodSandboxId()), removeLogs(metadata))
		}
	}
	made := restoredPod{Pod: resp.GetPodSandboxId(), Started: !as.created}
	for _, one := range resp.GetRestoredContainers() {
		made.Containers = append(made.Containers, restoredContainer{one.GetContainerId(), one.GetName()})
	}
	if made.Started {
		if err := startAll(ctx, cri, made); err != nil {
			return errors.Join(err, removePod(ctx, cri, made.Pod), removeLogs(metadata))
		}
	}
	return output.Encode(c.OutOrStdout(), r.Output, made, output.Lines(restoredLines(made, time.Since(begin))))
}

// namesakes returns the node's sandboxes with the namespace and name in of.
func namesakes(ctx context.Context, cri cli.CRI, of *runtimeapi.PodSandboxMetadata) ([]*runtimeapi.PodSandbox, error) {
	all, err := cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	return slices.DeleteFunc(all.GetItems(), func(p *runtimeapi.PodSandbox) bool {
		return p.GetMetadata().GetNamespace() != of.GetNamespace() || p.GetMetadata().GetName() != of.GetName()
	}), err
}

// podLogs is the kubelet's directory of logs, with one directory per pod.
const podLogs = "/var/log/pods"

func logsOf(p *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{p.GetNamespace(), p.GetName(), p.GetUid()}, "_")
}

// removeLogs removes a pod's directory in podLogs, and never follows a link out of it.
func removeLogs(p *runtimeapi.PodSandboxMetadata) error {
	root, err := os.OpenRoot(podLogs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(logsOf(p))
}

func startAll(ctx context.Context, cri cli.CRI, p restoredPod) error {
	for _, one := range p.Containers {
		if _, err := cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: one.ID}); err != nil {
			return fmt.Errorf("start container %s: %w", one.Name, err)
		}
	}
	return nil
}

// removePod removes a pod, even after the end of ctx.
func removePod(ctx context.Context, cri cli.CRI, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cli.CallTimeout)
	defer cancel()
	if _, err := cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stop pod %s: %w", id, err)
	}
	if _, err := cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("remove pod %s: %w", id, err)
	}
	return nil
}

func restoredLines(p restoredPod, took time.Duration) []string {
	lines := []string{"pod " + p.Pod}
	for _, one := range p.Containers {
		lines = append(lines, "container "+one.ID+" "+one.Name)
	}
	if p.Started {
		lines = append(lines, "started, in "+took.Round(time.Millisecond).String())
	}
	return lines
}

// requestOf returns the request to restore the checkpoint's pod with the changes that the flags
// request. Pure except for a new UID.
func requestOf(m *manifest.Manifest, as *restored) (*runtimeapi.RestorePodRequest, error) {
	config := &runtimeapi.PodSandboxConfig{}
	if err := protojson.Unmarshal(m.Pod, config); err != nil {
		return nil, fmt.Errorf("decode the pod of the checkpoint: %w", err)
	}
	request := &runtimeapi.RestorePodRequest{Config: config, RuntimeHandler: m.Handler.Name}
	config.Metadata = cmp.Or(config.Metadata, &runtimeapi.PodSandboxMetadata{})
	config.Linux = cmp.Or(config.Linux, &runtimeapi.LinuxPodSandboxConfig{})
	// The old pod's cgroup and logs belong to its kubelet.
	config.Linux.CgroupParent, config.Metadata.Attempt, config.Metadata.Uid = as.cgroup, 0, as.uid
	if as.uid == "" {
		config.Metadata.Uid = rand.Text()
	}
	for to, given := range map[*string]string{&config.Metadata.Name: as.name, &config.Metadata.Namespace: as.namespace, &request.RuntimeHandler: as.handler} {
		if given != "" {
			*to = given
		}
	}
	config.LogDirectory = as.logs
	if as.logs == "" {
		config.LogDirectory = filepath.Join(podLogs, logsOf(config.Metadata))
	}
	for _, c := range m.Containers {
		one := &runtimeapi.ContainerConfig{}
		if err := protojson.Unmarshal(c.Config, one); err != nil {
			return nil, fmt.Errorf("decode container %q of the checkpoint: %w", c.Name, err)
		}
		request.ContainerConfigs = append(request.ContainerConfigs, one)
	}
	return request, nil
}
