package images

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/printable"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func imagePullCommand() *cobra.Command {
	r := &cli.Remote{}
	handler, credentials, quiet, plainHTTP := "", "", false, false
	c := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Pull an image and show the progress",
		Long: `Pull an image as the kubelet does and print its ID. It uses this node's registries and
mirrors, and the handler's snapshotter. An interrupt ends the pull unless a pod waits for
it; the next pull resumes it.`,
		Example: "  berth image pull registry.example/app:1\n  berth image pull --handler kata registry.example/app:1\n" +
			"  echo user:password | berth image pull --creds-file - registry.example/app:1",
		Args: cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			auth, err := cli.ReadCredentials(credentials, c.InOrStdin())
			if err != nil {
				return commandline.Misused(c, err)
			}
			cri, err := cli.ConnectCRI(ctx, daemon)
			if err != nil {
				return err
			}
			defer cri.Close()
			begin := time.Now()
			end := func(bool) {}
			if !quiet {
				end = showPull(ctx, c.ErrOrStderr(), daemon, args[0])
			}
			if plainHTTP {
				ctx = metadata.AppendToOutgoingContext(ctx, image.PlainHTTP, "true")
			}
			resp, err := cri.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(args[0], handler), Auth: auth})
			end(err == nil)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), resp.GetImageRef())
			if !quiet {
				fmt.Fprintf(c.ErrOrStderr(), "pulled in %s\n", cli.Took(time.Since(begin)))
			}
			return nil
		}),
	}
	r.SocketFlag(c)
	r.HandlerFlag(c, &handler, "pull for pods of this handler (default: the default handler)")
	c.Flags().StringVar(&credentials, "creds-file", "", "`path` of a file with user:password for the registry; - is standard input")
	c.Flags().BoolVar(&plainHTTP, "plain-http", false, "connect without TLS to a registry that has no hosts.toml; exposes the credentials to the network")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the image's ID")
	return c
}

// pullInterval is the polling interval of a pull.
const pullInterval = 150 * time.Millisecond

// showPull shows the progress of a pull until end is called.
func showPull(ctx context.Context, to io.Writer, daemon *client.Client, name string) (end func(pulled bool)) {
	ctx, stop := context.WithCancel(ctx)
	var show pullView = &pullLines{to: to, printed: map[string]bool{}}
	if width := output.Width(to); width > 0 {
		show = newPullBars(output.Raw(to), width)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(pullInterval)
		defer tick.Stop()
		for {
			if resp, err := daemon.ListPulls(ctx, &adminv1.ListPullsRequest{}); err == nil {
				if p := pullOf(resp.GetPulls(), name); p != nil {
					show.now(p)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func(pulled bool) {
		stop()
		<-done
		show.end(pulled)
	}
}

// pullOf returns the pull of an image, which may be given by a short name. Pure.
func pullOf(pulls []*adminv1.Pull, name string) *adminv1.Pull {
	for _, p := range pulls {
		// "busybox" stands for "docker.io/library/busybox:latest".
		if whole := p.GetName(); whole == name || strings.HasSuffix(whole, "/"+name) || strings.HasSuffix(whole, "/"+name+":latest") || whole == name+":latest" {
			return p
		}
	}
	return nil
}

// unpackedStage is the last stage of a layer.
const unpackedStage = "unpacked"

type pullView interface {
	now(p *adminv1.Pull)
	// end is called once, after the last now.
	end(pulled bool)
}

// pullLines prints each layer once it is unpacked.
type pullLines struct {
	to      io.Writer
	printed map[string]bool
	last    *adminv1.Pull
}

func (v *pullLines) now(p *adminv1.Pull) {
	v.last = p
	for _, l := range p.GetLayers() {
		if l.GetStage() == unpackedStage {
			v.printUnpacked(l)
		}
	}
}

func (v *pullLines) printUnpacked(l *adminv1.PullLayer) {
	if !v.printed[l.GetDigest()] {
		v.printed[l.GetDigest()] = true
		fmt.Fprintf(v.to, "%s unpacked, %s\n", layerName(l), cli.Size(l.GetSize()))
	}
}

// end prints the layers unpacked after the last poll.
func (v *pullLines) end(pulled bool) {
	for _, l := range v.last.GetLayers() {
		if pulled {
			v.printUnpacked(l)
		}
	}
}

func layerName(l *adminv1.PullLayer) string {
	return printable.Line(cli.Short(strings.TrimPrefix(l.GetDigest(), "sha256:")))
}

type pullBars struct {
	all  *mpb.Progress
	bars map[string]*layerBar
}

type layerBar struct {
	*mpb.Bar
	size int64
	// stage is read while the bar is drawn, in another goroutine.
	stage atomic.Value
}

func newPullBars(to io.Writer, width int) *pullBars {
	return &pullBars{
		all:  mpb.New(mpb.WithOutput(to), mpb.WithWidth(max(10, width-60)), mpb.WithRefreshRate(pullInterval), mpb.WithAutoRefresh()),
		bars: map[string]*layerBar{},
	}
}

func (v *pullBars) now(p *adminv1.Pull) {
	for _, l := range p.GetLayers() {
		b := v.bars[l.GetDigest()]
		if b == nil {
			b = &layerBar{size: max(l.GetSize(), 1)}
			b.stage.Store("")
			v.bars[l.GetDigest()] = b
			name := layerName(l)
			// A bar with its total set from the start would no longer be drawn once the layer is
			// fetched.
			b.Bar = v.all.AddBar(0,
				mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return fmt.Sprintf("%s %-9s ", name, b.stage.Load()) })),
				mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
					return fmt.Sprintf(" %s of %s", cli.Size(s.Current), cli.Size(s.Total))
				})))
		}
		if stage := printable.Line(l.GetStage()); stage != "" {
			b.stage.Store(stage)
		}
		b.SetTotal(b.size, false)
		b.SetCurrent(l.GetFetched())
	}
}

func (v *pullBars) end(pulled bool) {
	for _, b := range v.bars {
		if pulled {
			b.stage.Store(unpackedStage)
			b.SetCurrent(b.size)
			b.SetTotal(b.size, true)
		} else {
			b.Abort(false)
		}
	}
	v.all.Wait()
}

func pullTable(pulls []*adminv1.Pull, wide bool) *output.Table {
	t := &output.Table{Header: []string{"IMAGE", "SNAPSHOTTER", "FOR", "LAYERS", "FETCHED", "SIZE", "STAGES"}, Whole: wide}
	for _, p := range pulls {
		var all, fetched int64
		stages := map[string]int{}
		for _, l := range p.GetLayers() {
			all += l.GetSize()
			fetched += l.GetFetched()
			stages[l.GetStage()]++
		}
		var words []string
		for _, s := range []string{"waiting", "fetching", "fetched", "unpacking", unpackedStage} {
			if n := stages[s]; n > 0 {
				words = append(words, fmt.Sprintf("%d %s", n, s))
			}
		}
		t.Add(p.GetName(), p.GetSnapshotter(), cli.Took(time.Since(p.GetBeganAt().AsTime())), fmt.Sprint(len(p.GetLayers())),
			cli.Size(fetched), cli.Size(all), strings.Join(words, ", "))
		t.Names = append(t.Names, p.GetName())
	}
	return t
}
