package faults

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ocidigest "github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// maxGrowth is the largest growth of the daemon's memory that a test allows.
const maxGrowth = 64 << 20

// endless is the size of an "endless" body: more than maxGrowth, but not so much that
// a daemon without limits would exhaust the machine.
const endless = 512 << 20

// attack is an image that a node pulls because a pod names it.
type attack struct {
	// image prepares the registry and returns the image to pull.
	image func(*testing.T, *hostile) string
	// code and says are the code and text of the error. If the pull must succeed, code is OK.
	code codes.Code
	says string
	// then is called after a successful pull.
	then func(*testing.T, *bed, string)
}

func attacks() map[string]attack {
	const invalid = codes.InvalidArgument
	return map[string]attack{
		"endless token":         {image: endlessToken, code: invalid, says: "is longer than"},
		"endless manifest":      {image: endlessManifest, code: invalid, says: "is longer than"},
		"dripping layer":        {image: drippingLayer, code: codes.Unknown, says: "too slowly"},
		"large manifest":        {image: largeManifest, code: invalid, says: "more than 4194304"},
		"large configuration":   {image: largeConfig, code: invalid, says: "more than 4194304"},
		"six million variables": {image: manyVariables(6_000_000), code: invalid, says: "more than 4194304"},
		"one million variables": {image: manyVariables(1_000_000), code: invalid, says: "elements"},
		"indexes in indexes":    {image: nestedIndexes, code: invalid, says: "indexes above its manifest"},
		"layer is a config":     {image: layerIsConfig, code: invalid, says: "is not valid"},
		"compressed manifest":   {image: zippedManifest, code: invalid, says: "is longer than"},
		"long header":           {image: longHeader, code: codes.Unknown, says: "RegistryUnavailable"},
		"endless error":         {image: endlessError, code: codes.Unknown, says: "RegistryUnavailable"},
		"redirect loop":         {image: circle, code: codes.Unknown, says: "RegistryUnavailable"},
		"many entries":          {image: manyEntries, code: invalid, says: "registry.max_image_entries"},
		"long names":            {image: longNames},
		"long attributes":       {image: longAttributes},
		"sparse file of 1 EiB":  {image: holes, code: codes.ResourceExhausted, says: "no space left"},
		"wide zstd window":      {image: wideWindow, code: invalid, says: "registry.max_unpack_memory"},
		"long labels":           {image: longLabels, then: inspected},
		"long environment":      {image: longEnvironment, then: inspected},
	}
}

func endlessToken(_ *testing.T, h *hostile) string {
	h.answer("/v2/token-please/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="s",scope="repository:x:pull"`, h.URL+"/token"))
		w.WriteHeader(http.StatusUnauthorized)
	})
	h.answer("/token", func(w http.ResponseWriter, _ *http.Request) { _ = padded(`{"token":"`, endless, "a", `"}`)(w) })
	return h.host() + "/token-please/app:1"
}

func endlessManifest(_ *testing.T, h *hostile) string {
	h.answer("/v2/endless/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
		if r.Method == http.MethodGet {
			_ = padded("{", endless, " ", "}")(w)
		}
	})
	return h.host() + "/endless/app:1"
}

func drippingLayer(t *testing.T, h *hostile) string {
	gone := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayerGzip, Digest: ocidigest.FromString(fmt.Sprint("drips", h.number)), Size: 10 << 30}
	h.answer("/v2/hostile/app/blobs/"+gone.Digest.String(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(gone.Size))
		drip(w, r)
	})
	return h.image(t, "drips", h.config(t, nil, gone.Digest), gone)
}

func largeManifest(t *testing.T, h *hostile) string {
	m := h.put(t, imagespec.MediaTypeImageManifest, padded(fmt.Sprintf(`{"schemaVersion":2,"annotations":{"n":"%d","a":"`, h.number), 300<<20, "a", `"}}`))
	return h.tag("manifest", h.index(t, m))
}

func largeConfig(t *testing.T, h *hostile) string {
	c := h.put(t, imagespec.MediaTypeImageConfig, padded(fmt.Sprintf(`{"os":"linux","rootfs":{"type":"layers","diff_ids":[]},"author":"%d`, h.number), 300<<20, "a", `"}`))
	return h.image(t, "config", c)
}

func manyVariables(n int64) func(*testing.T, *hostile) string {
	return func(t *testing.T, h *hostile) string {
		c := h.put(t, imagespec.MediaTypeImageConfig, padded(fmt.Sprintf(`{"os":"linux","rootfs":{"type":"layers","diff_ids":[]},"config":{"Env":["%d",`, h.number), 3*n, `"",`, `""]}}`))
		return h.image(t, fmt.Sprint("variables", n), c)
	}
}

func nestedIndexes(t *testing.T, h *hostile) string {
	desc := h.manifest(t, h.config(t, nil))
	for range 200 {
		desc = h.index(t, desc)
	}
	return h.tag("nested", desc)
}

// layerIsConfig is an image with a blob of 300 MiB in its list of layers. The blob has the media
// type of a configuration, so containerd's unpacker would read it into memory.
func layerIsConfig(t *testing.T, h *hostile) string {
	text, inside := emptyTar(t)
	layer := h.putBytes(t, imagespec.MediaTypeImageLayerGzip, text)
	c := h.put(t, imagespec.MediaTypeImageConfig, padded(fmt.Sprintf(`{"os":"linux","rootfs":{"type":"layers","diff_ids":[]},"author":"%d`, h.number), 300<<20, "a", `"}`))
	return h.image(t, "inner-config", h.config(t, nil, inside, c.Digest), layer, c)
}

// zippedManifest is a manifest with Content-Encoding gzip. It is small in transfer, and large when
// it is decompressed.
func zippedManifest(t *testing.T, h *hostile) string {
	text := zipped(t, padded("{", endless, " ", "}"))
	h.answer("/v2/zipped/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
		w.Header().Set("Content-Encoding", "gzip")
		if r.Method == http.MethodGet {
			_, _ = w.Write(text)
		}
	})
	return h.host() + "/zipped/app:1"
}

func longHeader(_ *testing.T, h *hostile) string {
	h.answer("/v2/header/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("a", 9<<20))
		w.WriteHeader(http.StatusInternalServerError)
	})
	return h.host() + "/header/app:1"
}

func endlessError(_ *testing.T, h *hostile) string {
	h.answer("/v2/error/", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_ = padded("", endless, "a", "")(w)
	})
	return h.host() + "/error/app:1"
}

func circle(_ *testing.T, h *hostile) string {
	h.answer("/v2/circle/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	})
	return h.host() + "/circle/app:1"
}

func wideWindow(t *testing.T, h *hostile) string {
	text, inside := wideZstd(t)
	layer := h.putBytes(t, imagespec.MediaTypeImageLayerZstd, text)
	return h.image(t, "zstd", h.config(t, nil, inside), layer)
}

// ofLayer tags an image of one layer.
func ofLayer(t *testing.T, h *hostile, name string, write func(io.Writer) error) string {
	t.Helper()
	sum := sha256.New()
	text := zipped(t, func(w io.Writer) error { return write(io.MultiWriter(w, sum)) })
	inside := ocidigest.NewDigest(ocidigest.SHA256, sum)
	layer := h.putBytes(t, imagespec.MediaTypeImageLayerGzip, text)
	return h.image(t, name, h.config(t, nil, inside), layer)
}

// entries returns a function that writes an archive of n entries without content.
func entries(n int, of func(int) *tar.Header) func(io.Writer) error {
	return func(to io.Writer) error {
		w := tar.NewWriter(to)
		for i := range n {
			if err := w.WriteHeader(of(i)); err != nil {
				return err
			}
		}
		return w.Close()
	}
}

// maxEntries is registry.max_image_entries in these tests.
const maxEntries = 4000

func manyEntries(t *testing.T, h *hostile) string {
	return ofLayer(t, h, "entries", entries(maxEntries+1, func(i int) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint("d", h.number, "-", i/1000, "/", i), Mode: 0o644}
	}))
}

func longNames(t *testing.T, h *hostile) string {
	long := strings.Repeat(strings.Repeat("n", 250)+"/", 14)
	return ofLayer(t, h, "names", entries(maxEntries-1000, func(i int) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint(long, h.number, "-", i/1000, "/", i), Mode: 0o644}
	}))
}

// longAttributes is an image with directories that have attributes of 1 MB. An unpacker keeps the
// attributes in memory until the end of the layer.
func longAttributes(t *testing.T, h *hostile) string {
	long := strings.Repeat("a", 1_000_000)
	return ofLayer(t, h, "attributes", entries(300, func(i int) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint("d", h.number, "-", i, "/"), Mode: 0o755, PAXRecords: map[string]string{"BERTH.long": long}}
	}))
}

// holes is an image with a sparse file of 1 EiB. The file has no data. An unpacker without limits
// would write 1 EiB of zeros.
func holes(t *testing.T, h *hostile) string {
	const size = 1 << 60
	attributes := ""
	for name, value := range map[string]string{"major": "0", "minor": "1", "size": fmt.Sprint(size), "numblocks": "1", "map": fmt.Sprint(size, ",0")} {
		record := fmt.Sprint(" GNU.sparse.", name, "=", value, "\n")
		attributes += fmt.Sprint(len(record)+2, record)
	}
	return ofLayer(t, h, "holes", func(w io.Writer) error {
		text := slices.Concat(tarBlock("attributes", 'x', len(attributes)), []byte(attributes), make([]byte, 512-len(attributes)%512),
			tarBlock(fmt.Sprint("holes", h.number), tar.TypeReg, 0), make([]byte, 1024))
		_, err := w.Write(text)
		return err
	})
}

// tarBlock is a header that tar.Writer would refuse to write.
func tarBlock(name string, kind byte, size int) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], fmt.Sprintf("0000644\x000000000\x000000000\x00%011o\x0000000000000\x00        %c", size, kind))
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// longLabels and longEnvironment are images with configurations near the size limit. inspected pulls
// several such images and requests the status of one. The daemon's memory may grow by at most
// maxGrowth.
func longLabels(t *testing.T, h *hostile) string {
	return manyImages(t, h, "labels", func(i int, spec *imagespec.Image) {
		spec.Config.Labels = map[string]string{"number": fmt.Sprint(i), "long": strings.Repeat("a", 3<<20)}
	})
}

func longEnvironment(t *testing.T, h *hostile) string {
	return manyImages(t, h, "environment", func(i int, spec *imagespec.Image) {
		for n := range 20_000 {
			spec.Config.Env = append(spec.Config.Env, fmt.Sprintf("V%d=%d %0100d", n, i, n))
		}
	})
}

const imageCount = 10

// manyImages tags imageCount images: name+"0", name+"1" and so on. It returns the reference of the
// first image.
func manyImages(t *testing.T, h *hostile, name string, change func(int, *imagespec.Image)) string {
	text, inside := emptyTar(t)
	layer := h.putBytes(t, imagespec.MediaTypeImageLayerGzip, text)
	ref := ""
	for i := range imageCount {
		ref = h.image(t, name+strconv.Itoa(i), h.config(t, func(spec *imagespec.Image) { change(i, spec) }, inside), layer)
	}
	return strings.TrimSuffix(ref, strconv.Itoa(imageCount-1)) + "0"
}

// inspected pulls all images of manyImages. Then it reads the verbose status of the first image.
func inspected(t *testing.T, b *bed, image string) {
	for i := range imageCount {
		ref := strings.TrimSuffix(image, "0") + strconv.Itoa(i)
		testbed.Mustf(t, b.pull(t, ref), "pull %s", ref)
	}
	for range 3 {
		_, err := b.Client.ImageStatus(testbed.Within(t, time.Minute), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}, Verbose: true})
		testbed.Checkf(t, err, "status")
	}
}

func (b *bed) pull(t *testing.T, image string) error {
	t.Helper()
	_, err := b.Client.PullImage(testbed.Within(t, 5*time.Minute), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return err
}

// TestHostileImages pulls images that are made to exhaust memory or time, or to crash the daemon.
// Only the pull may fail. The daemon's memory may grow by at most maxGrowth.
func TestHostileImages(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	for name, a := range attacks() {
		t.Run(name, func(t *testing.T) { attacked(t, a, a.image(t, h)) })
	}
}

// atOnce is the number of hostile images that are pulled at the same time.
const atOnce = 5

// TestManyHostileImages pulls several images of one kind at the same time. Together, they may use
// no more of the daemon's memory than one image may use. Archives that attack an unpacker are left
// out, because child processes unpack them.
func TestManyHostileImages(t *testing.T) {
	t.Parallel()
	kinds := attacks()
	// The other kinds are similar, or are refused early.
	for _, name := range []string{"endless token", "one million variables", "layer is a config", "long environment"} {
		t.Run(name, func(t *testing.T) {
			var images []string
			for i := range atOnce {
				h := newHostile(t)
				h.number = i
				images = append(images, kinds[name].image(t, h))
			}
			attacked(t, kinds[name], images...)
		})
	}
}

// attacked starts a daemon and pulls all images at the same time. It checks the growth of the
// daemon's memory.
func attacked(t *testing.T, a attack, images ...string) {
	t.Helper()
	b := newBed(t, testbed.Options{Config: "[registry]\npull_progress_timeout = \"2s\"\nmax_image_entries = " + strconv.Itoa(maxEntries) + "\n[log]\nlevel = \"info\"\n"})
	b.Client.Pull(t, "", b.Image)
	pid := b.PID()
	growth := growthOf(t, pid)
	var all sync.WaitGroup
	for _, image := range images {
		all.Go(func() {
			err := b.pull(t, image)
			if status.Code(err) != a.code || a.code != codes.OK && !strings.Contains(err.Error(), a.says) {
				t.Errorf("pull: %.700v, want %v with %q", err, a.code, a.says)
			}
			if a.then != nil && err == nil {
				a.then(t, b, image)
			}
		})
	}
	all.Wait()
	if !b.Running() || b.PID() != pid {
		t.Fatal("the daemon has crashed")
	}
	growth(maxGrowth)
}

// TestHostileArchives imports small archives whose JSON would need much memory to decode.
func TestHostileArchives(t *testing.T) {
	tags := "[{\"Config\":\"config.json\",\"RepoTags\":[" + strings.Repeat(`"a.b/c:1",`, 200_000) + `"a.b/c:2"],"Layers":[]}]`
	for name, files := range map[string][][2]string{
		"tags":    {{"config.json", `{"architecture":"amd64","os":"linux"}`}, {"manifest.json", tags}},
		"layers":  {{"manifest.json", "[" + strings.Repeat(`{},`, 1<<20) + "{}]"}},
		"history": {{"config.json", `{"os":"linux","history":[` + strings.Repeat(`{},`, 1<<20) + "{}]}"}, {"manifest.json", `[{"Config":"config.json","RepoTags":["a.b/c:1"],"Layers":[]}]`}},
		"index":   {{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`}, {"index.json", `{"schemaVersion":2,"manifests":[` + strings.Repeat(`{},`, 1<<20) + "{}]}"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, testbed.Options{})
			b.Client.Pull(t, "", b.Image)
			path := filepath.Join(t.TempDir(), "archive.tar")
			f, err := os.Create(path)
			testbed.Must(t, err)
			w := tar.NewWriter(f)
			for _, file := range files {
				testbed.Must(t, w.WriteHeader(&tar.Header{Name: file[0], Size: int64(len(file[1])), Mode: 0o600}))
				if _, err := io.WriteString(w, file[1]); err != nil {
					t.Fatal(err)
				}
			}
			testbed.Must(t, errors.Join(w.Close(), f.Close()))
			growth := growthOf(t, b.PID())
			out, err := b.berth(t, "image", "import", path)
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || !strings.Contains(out, "elements") {
				t.Errorf("import: %v\n%s", err, out)
			}
			growth(maxGrowth)
		})
	}
}

// TestNeighbourOfHostileImages runs ordinary pods while all hostile images are pulled.
func TestNeighbourOfHostileImages(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	b := newBed(t, testbed.Options{})
	pid := b.PID()
	ctx, cancel := context.WithCancel(t.Context())
	var pulls sync.WaitGroup
	for _, a := range attacks() {
		image := a.image(t, h)
		pulls.Go(func() {
			for ctx.Err() == nil {
				_, err := b.Client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
				if err == nil {
					return
				}
				select { // as a kubelet waits between attempts
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
	}
	for range 3 {
		b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "600"}}).Remove(t)
	}
	cancel()
	pulls.Wait()
	if !b.Running() || b.PID() != pid {
		t.Error("the daemon has crashed")
	}
}

// growthOf resets the peak memory of a process. The returned function reads the new peak. It fails
// the test if the peak is more than limit bytes above the memory at the reset.
func growthOf(t *testing.T, pid int) func(limit int64) {
	t.Helper()
	before := memory(t, pid, "VmRSS")
	testbed.Must(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0))
	return func(limit int64) {
		t.Helper()
		growth := memory(t, pid, "VmHWM") - before
		t.Logf("growth %d MiB", growth>>20)
		if growth > limit {
			t.Errorf("the daemon's memory grew by %d MiB, more than %d", growth>>20, limit>>20)
		}
	}
}

// memory returns a number from /proc/PID/status, in bytes.
func memory(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	testbed.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == name+":" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			testbed.Must(t, err)
			return kib << 10
		}
	}
	t.Fatal(errors.New("/proc/PID/status has no " + name))
	return 0
}

func zipped(t *testing.T, write func(io.Writer) error) []byte {
	t.Helper()
	var b strings.Builder
	z := gzip.NewWriter(&b)
	testbed.Must(t, errors.Join(write(z), z.Close()))
	return []byte(b.String())
}
