package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/engine/checkpoint/ociimage"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/artifact"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// checkpointImage is one that was made of an archive.
type checkpointImage struct {
	Name      string        `json:"name"`
	Digest    digest.Digest `json:"digest"`
	Container string        `json:"container"`
	// Base is the image that the container ran.
	Base string `json:"base"`
}

func checkpointImageCommand() *cobra.Command {
	r, k := &remote{}, &carrier{}
	file, handler, push := "", "", false
	c := &cobra.Command{
		Use:   "image ARCHIVE NAME",
		Short: "Make an image of the checkpoint of a container",
		Long: `Make an image of the archive that the kubelet's checkpoint API wrote of a container, and
bring it onto this node: a pod whose container has that image goes on where the
checkpoint was, if registry.checkpoint_images allows it. With --push, send it to a
registry instead; with --file, write it into an archive for "berth image import". Who has
the image has every secret that the container had in memory.`,
		Example: "  berth checkpoint image /var/lib/kubelet/checkpoints/checkpoint-web.tar registry.example/team/web:warm --push",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(orBackground(c.Context()), unix.SIGINT, unix.SIGTERM)
			defer stop()
			img, err := ociimage.Of(ctx, args[0])
			if err != nil {
				return err
			}
			done := ""
			switch name := args[1]; {
			case push:
				done, err = "pushed", k.carry(c, func(ctx context.Context, registry artifact.Registry) error {
					return img.Push(ctx, name, registry)
				})
			case file == "-":
				return img.Archive(ctx, output.Raw(c.OutOrStdout()), name)
			case file != "":
				done, err = "written", whole(file, func(w io.Writer) error { return img.Archive(ctx, w, name) })
			default:
				done, err = "imported", r.with(c, func(ctx context.Context, daemon *client.Client) error {
					return importCheckpoint(ctx, daemon, img, name, handler)
				})
			}
			if err != nil {
				return err
			}
			made := checkpointImage{args[1], img.Digest(), img.Container, img.Base}
			return encode(c.OutOrStdout(), r.output, made, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s %s: container %s, which ran %s\n", done, made.Name, made.Container, made.Base)
				return err
			})
		},
	}
	r.flags(c)
	k.registryFlags(c)
	r.imageHandlerFlag(c, &handler, "import for pods of this handler (default: the default handler)")
	c.Flags().BoolVar(&push, "push", false, "send the image to its registry, and do not import it")
	c.Flags().StringVarP(&file, "file", "f", "", "write the image into an archive at this `path`, and do not import it; - is standard output")
	c.MarkFlagsMutuallyExclusive("push", "file", "handler")
	return c
}

// importCheckpoint sends the daemon what is read of the archive meanwhile.
func importCheckpoint(ctx context.Context, daemon *client.Client, img *ociimage.Image, name, handler string) error {
	from, to := io.Pipe()
	go func() { to.CloseWithError(img.Archive(ctx, to, name)) }()
	// Whatever the daemon did not read is not written any more.
	defer func() { _ = from.Close() }() // it never fails
	_, err := sendArchive(ctx, daemon, from, &adminv1.ImportImagesRequest{Name: name, Handler: handler})
	return err
}
