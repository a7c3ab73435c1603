// Package images has the commands for images. Most call the CRI, as a kubelet does.
package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// Command returns the command "berth image".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Manage images",
		Long: `Manage the images of this node. "export", "import" and "list --pulling" handle berth's own
images. The other commands use the CRI, and also handle those of other daemons.`,
		Example: "  berth image list\n  berth image pull registry.example/app:1\n  berth image prune --dry-run",
	}
	c.AddCommand(imageListCommand(), imagePullCommand(), imageInspectCommand(), imageRemoveCommand(), imagePruneCommand(),
		imageExportCommand(), imageImportCommand())
	return c
}

type imageFacts struct {
	ID          string   `json:"id"`
	RepoTags    []string `json:"repoTags"`
	RepoDigests []string `json:"repoDigests"`
	Size        uint64   `json:"size"`
	Pinned      bool     `json:"pinned"`
}

func factsOf(i *runtimeapi.Image) imageFacts {
	return imageFacts{i.GetId(), i.GetRepoTags(), i.GetRepoDigests(), i.GetSize(), i.GetPinned()}
}

type listedImage struct {
	imageFacts
	// Containers counts the image's containers, including exited ones.
	Containers int `json:"containers"`
}

func listImages(ctx context.Context, cri cli.CRI, which *runtimeapi.ImageFilter) ([]listedImage, error) {
	found, err := cri.ListImages(ctx, &runtimeapi.ListImagesRequest{Filter: which})
	if err != nil {
		return nil, err
	}
	containers, err := cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	return withUse(found.GetImages(), containers.GetContainers()), nil
}

// withUse counts the containers of each image, and sorts by name. Pure.
func withUse(images []*runtimeapi.Image, containers []*runtimeapi.Container) []listedImage {
	users := map[string]int{}
	for _, c := range containers {
		for name := range sets.New(c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()) {
			users[name]++
		}
	}
	out := make([]listedImage, 0, len(images))
	for _, i := range images {
		l := listedImage{imageFacts: factsOf(i)}
		for _, name := range slices.Concat([]string{l.ID}, l.RepoTags, l.RepoDigests) {
			l.Containers = max(l.Containers, users[name])
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b listedImage) int {
		return strings.Compare(a.names()[0]+a.ID, b.names()[0]+b.ID)
	})
	return out
}

// names returns the tags of an image, else its digests, else a placeholder.
func (l listedImage) names() []string {
	switch {
	case len(l.RepoTags) > 0:
		return l.RepoTags
	case len(l.RepoDigests) > 0:
		return l.RepoDigests
	}
	return []string{"<none>"}
}

func imageListCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	pulling := false
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List images, or running pulls",
		Long: `List images with their compressed size and the number of their containers. Exited
containers are counted, too. With --pulling, list the running pulls of all clients and
their progress.`,
		Example: "  berth image list\n  berth image list -q\n  berth image list --pulling",
		Args:    cobra.NoArgs,
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			if pulling {
				resp, err := daemon.ListPulls(ctx, &adminv1.ListPullsRequest{})
				if err != nil {
					return err
				}
				return r.Print(c.OutOrStdout(), resp, r.Table(pullTable(resp.GetPulls(), r.Wide())))
			}
			cri, err := cli.ConnectCRI(ctx, daemon)
			if err != nil {
				return err
			}
			defer cri.Close()
			all, err := listImages(ctx, cri, nil)
			if err != nil {
				return err
			}
			return output.Encode(c.OutOrStdout(), r.Output, map[string]any{"images": all}, r.Table(imageTable(all, r.Wide())))
		}),
	}
	r.Flags(c)
	r.ListFlags(c, "the IDs of images, or with --pulling their names")
	c.Flags().BoolVar(&pulling, "pulling", false, "list the running pulls")
	return c
}

func imageTable(images []listedImage, wide bool) *output.Table {
	t := &output.Table{Header: []string{"IMAGE", "ID", "SIZE", "CONTAINERS", "PINNED"}, Whole: wide}
	for _, i := range images {
		id := i.ID
		if !wide {
			id = cli.Short(strings.TrimPrefix(id, "sha256:"))
		}
		t.Names = append(t.Names, i.ID)
		for _, name := range i.names() {
			t.Add(name, id, cli.Size(int64(i.Size)), fmt.Sprint(i.Containers), map[bool]string{true: "yes", false: "no"}[i.Pinned]) //nolint:gosec // a size on disk
		}
	}
	return t
}

func imageInspectCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	handler := ""
	c := &cobra.Command{
		Use:     "inspect IMAGE",
		Short:   "Show the names, size and configuration of an image",
		Example: "  berth image inspect registry.example/app:1",
		Args:    cobra.ExactArgs(1),
		RunE: r.CallCRI(func(ctx context.Context, c *cobra.Command, cri cli.CRI, args []string) error {
			resp, err := cri.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(args[0], handler), Verbose: true})
			if err != nil {
				return err
			}
			if resp.GetImage() == nil {
				return fmt.Errorf("image %q is not on this node; pull it with \"berth image pull %s\"", args[0], args[0])
			}
			return output.Encode(c.OutOrStdout(), r.Output, inspect(resp), nil)
		}),
	}
	r.SocketFlag(c)
	output.Flag(c, &r.Output, "json", "yaml")
	r.HandlerFlag(c, &handler, "look up the image for pods of this handler")
	return c
}

type inspectedImage struct {
	imageFacts
	// Info is added by the backend: the image's configuration.
	Info map[string]any `json:"info,omitempty"`
}

func inspect(resp *runtimeapi.ImageStatusResponse) inspectedImage {
	out := inspectedImage{factsOf(resp.GetImage()), map[string]any{}}
	for key, text := range resp.GetInfo() {
		var v any
		if json.Unmarshal([]byte(text), &v) != nil {
			v = text
		}
		if parts, ok := v.(map[string]any); ok && key == "info" {
			maps.Copy(out.Info, parts)
			continue
		}
		out.Info[key] = v
	}
	return out
}

func spec(name, handler string) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: name, RuntimeHandler: handler}
}

func imageRemoveCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	force := false
	c := &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove"},
		Short:   "Remove images with all their names",
		Long: `Remove images, each with all its names. Give a name or ID of each image. Pinned images
are removed, too. An image that has containers, running or exited, is removed only with
--force. The layers of such an image stay on disk until its containers are removed. The
kubelet pulls an image again when a pod needs it.`,
		Example: "  berth image rm registry.example/app:1",
		Args:    cobra.MinimumNArgs(1),
		RunE: r.CallCRI(func(ctx context.Context, c *cobra.Command, cri cli.CRI, args []string) error {
			removed, lines := []string{}, []string(nil)
			var errs []error
			for _, name := range args {
				names, err := removeImage(ctx, cri, name, force)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", name, cri.Daemon.Explain(err)))
				}
				for _, n := range names {
					removed, lines = append(removed, n), append(lines, "removed "+n)
				}
			}
			err := output.Encode(c.OutOrStdout(), r.Output, map[string]any{"removed": removed}, output.Lines(lines))
			return errors.Join(append(errs, err)...)
		}),
	}
	r.Flags(c)
	c.Flags().BoolVar(&force, "force", false, "also remove images of containers")
	return c
}

// removeImage returns the removed names. It fails for an unknown image, unlike the CRI.
func removeImage(ctx context.Context, cri cli.CRI, name string, force bool) (removed []string, err error) {
	found, err := listImages(ctx, cri, &runtimeapi.ImageFilter{Image: spec(name, "")})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, status.Error(codes.NotFound, "the image is not on this node; \"berth image list\" lists the images")
	}
	for _, i := range found {
		removed = append(append(removed, i.RepoTags...), i.RepoDigests...)
		if i.Containers > 0 && !force {
			return nil, status.Errorf(codes.FailedPrecondition, "image %s has %s; remove the pods first, or use --force", strings.Join(i.names(), ", "), output.Count(i.Containers, "container", "containers"))
		}
	}
	if _, err := cri.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec(name, "")}); err != nil {
		return nil, err
	}
	return removed, nil
}

func imagePruneCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	dryRun := false
	c := &cobra.Command{
		Use:     "prune",
		Short:   "Remove unused images",
		Long:    `Remove images that are not pinned and have no containers, running or exited.`,
		Example: "  berth image prune --dry-run",
		Args:    cobra.NoArgs,
		RunE: r.CallCRI(func(ctx context.Context, c *cobra.Command, cri cli.CRI, _ []string) error {
			all, err := listImages(ctx, cri, nil)
			if err != nil {
				return err
			}
			pruned, names, freed := []listedImage{}, []string(nil), int64(0)
			var errs []error
			for _, i := range unused(all) {
				if !dryRun {
					if _, err := cri.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec(i.ID, "")}); err != nil {
						errs = append(errs, fmt.Errorf("%s: %w", i.names()[0], cri.Daemon.Explain(err)))
						continue
					}
				}
				freed += int64(i.Size) //nolint:gosec // a size on disk
				pruned, names = append(pruned, i), append(names, strings.Join(i.names(), " "))
			}
			err = output.Encode(c.OutOrStdout(), r.Output, map[string]any{"images": pruned, "dryRun": dryRun},
				output.Lines(cli.PrunedLines(names, cli.Size(freed)+" of compressed layers", dryRun)))
			return errors.Join(append(errs, err)...)
		}),
	}
	r.Flags(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be removed")
	return c
}

func unused(all []listedImage) (out []listedImage) {
	for _, i := range all {
		if i.Containers == 0 && !i.Pinned {
			out = append(out, i)
		}
	}
	return out
}

func imageNames(ctx context.Context, daemon *client.Client) (names []string) {
	cri, err := cli.ConnectCRI(ctx, daemon)
	if err != nil {
		return nil
	}
	defer cri.Close()
	found, _ := cri.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	for _, i := range found.GetImages() {
		names = append(names, i.GetRepoTags()...)
	}
	return names
}
