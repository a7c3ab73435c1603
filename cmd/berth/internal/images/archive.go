package images

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/atomicfile"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// archivePart is the size of an archive's part in one message, in bytes.
const archivePart = 1 << 20

func imageExportCommand() *cobra.Command {
	r := &cli.Remote{}
	to := ""
	c := &cobra.Command{
		Use:   "export IMAGE... --file FILE",
		Short: "Export images to an archive",
		Long: `Export images, by name or ID, to a tar archive in the OCI format, which "berth image
import", containerd and Docker read. The archive has only the layers of this node's
platform. On failure no file is left; output to - may be incomplete.`,
		Example: "  berth image export registry.example/app:1 registry.example/db:2 --file images.tar\n  berth image export app:1 --file - | gzip > app.tar.gz",
		Args:    cobra.MinimumNArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			stream, err := daemon.ExportImages(ctx, &adminv1.ExportImagesRequest{Images: args})
			if err != nil {
				return err
			}
			if to == "-" {
				return receive(stream, output.Raw(c.OutOrStdout()))
			}
			return writeComplete(to, func(w io.Writer) error { return receive(stream, w) })
		}),
		ValidArgsFunction: r.Complete(imageNames),
	}
	r.SocketFlag(c)
	c.Flags().StringVarP(&to, "file", "f", "", "`path` of the archive; - is standard output")
	if err := c.MarkFlagRequired("file"); err != nil {
		panic("berth: " + err.Error()) // the flag exists
	}
	return c
}

func receive(stream adminv1.Admin_ExportImagesClient, to io.Writer) error {
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := to.Write(resp.GetData()); err != nil {
			return err
		}
	}
}

// writeComplete writes a file that appears only once it is complete.
func writeComplete(path string, write func(io.Writer) error) error {
	fresh := fmt.Sprintf("%s.%d", atomicfile.TempPath(path), os.Getpid()) // another export may write the same file
	return atomicfile.WriteBy(fresh, path, 0o600, atomicfile.Durable, func(f io.Writer) error {
		w := bufio.NewWriterSize(f, archivePart)
		if err := write(w); err != nil {
			return err
		}
		return w.Flush()
	})
}

func imageImportCommand() *cobra.Command {
	r := &cli.Remote{}
	name, handler := "", ""
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Import images from an archive",
		Long: `Import images from a tar archive of "berth image export", "docker save", "ctr image
export", or of an OCI layout, also if it is compressed with gzip or zstd. No registry or
image verifier is contacted. FILE - is standard input.`,
		Example: "  berth image import images.tar\n  berth image import --name registry.example/app:1 layout.tar",
		Args:    cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			in := c.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("%w; give the path of an archive, or - for standard input", err)
				}
				defer f.Close()
				in = f
			}
			resp, err := sendArchive(ctx, daemon, in, &adminv1.ImportImagesRequest{Name: name, Handler: handler})
			if err != nil {
				return err
			}
			var lines []string
			for _, n := range resp.GetNames() {
				lines = append(lines, "imported "+n)
			}
			return r.Print(c.OutOrStdout(), resp, output.Lines(lines))
		}),
	}
	r.Flags(c)
	r.HandlerFlag(c, &handler, "import for pods of this handler (default: the default handler)")
	c.Flags().StringVar(&name, "name", "", "name of the image, in place of the archive's")
	return c
}

func sendArchive(ctx context.Context, daemon *client.Client, in io.Reader, first *adminv1.ImportImagesRequest) (*adminv1.ImportImagesResponse, error) {
	stream, err := daemon.ImportImages(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(first)
	for err == nil {
		part := make([]byte, archivePart)
		var n int
		if n, err = io.ReadFull(in, part); n > 0 {
			if failed := stream.Send(&adminv1.ImportImagesRequest{Data: part[:n]}); failed != nil {
				err = failed
			}
		}
	}
	// io.EOF may also be from Send: the answer then has the reason.
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	return stream.CloseAndRecv()
}
