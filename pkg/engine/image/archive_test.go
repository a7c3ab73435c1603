package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/archive"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// dockerArchive returns an archive in the format of "docker save".
func dockerArchive(t testing.TB, images map[string]v1.Image) []byte {
	t.Helper()
	refs := map[name.Reference]v1.Image{}
	for n, img := range images {
		tag := test.Value(name.NewTag(n))(t)
		refs[tag] = img
	}
	var out bytes.Buffer
	test.Must(t, tarball.MultiRefWrite(refs, &out))
	return out.Bytes()
}

// exported returns what Export writes for refs.
func exported(t testing.TB, s *Store, refs ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	test.Must(t, s.Export(t.Context(), &out, refs))
	return out.Bytes()
}

// rewritten returns a copy of an archive with the contents that edit returns. It omits a file if
// edit returns nil.
func rewritten(t testing.TB, old []byte, edit func(name string, content []byte) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for r := tar.NewReader(bytes.NewReader(old)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		test.Must(t, err)
		content := test.Value(io.ReadAll(r))(t)
		if h.Typeflag == tar.TypeReg {
			if content = edit(h.Name, content); content == nil {
				continue
			}
		}
		h.Size = int64(len(content))
		test.Must(t, w.WriteHeader(h))
		test.Must(t, test.Err(w.Write(content)))
	}
	test.Must(t, w.Close())
	return out.Bytes()
}

func TestImagesAreCarriedByArchives(t *testing.T) {
	built := layered(t, v1.Config{User: "7"})
	_, source, _ := pulled(t, Config{}, built)
	own := exported(t, source, app)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(own)
	test.Must(t, errors.Join(err, z.Close()))
	docker := dockerArchive(t, map[string]v1.Image{app: built})

	for what, text := range map[string][]byte{"own": own, "compressed": zipped.Bytes(), "docker": docker} {
		t.Run(what, func(t *testing.T) {
			s := openStore(t, Config{})
			names, err := s.Import(t.Context(), bytes.NewReader(text), archive.Request{})
			test.Must(t, err)
			test.EqualLists(t, "names", names, []string{app})
			img, err := s.Get(app)
			test.Must(t, err)
			if img.ID != idOf(t, built) || img.Config.User != "7" {
				t.Errorf("the imported image is %+v", img)
			}
			wantLeases(t, s, 0)
			s = reopen(t, s)
			if img, err = s.Get(app); err != nil {
				t.Fatalf("after a restart: %v", err)
			}
			wantFiles(t, s, img, "c", "", layeredTree)
		})
	}
}

func TestExportOfSeveral(t *testing.T) {
	reg := newTestRegistry(t)
	one, two := layered(t, v1.Config{}), build(t, v1.Config{}, layer(t, file{name: "two"}))
	reg.push(t, "one:1", one)
	reg.push(t, "two:1", two)
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	pullImage(t, s, domain+"/one:1")
	pullImage(t, s, domain+"/two:1")
	text := exported(t, s, domain+"/one:1", idOf(t, two))
	wantLeases(t, s, 0)

	to := openStore(t, Config{})
	names := test.Value(to.Import(t.Context(), bytes.NewReader(text), archive.Request{}))(t)
	if slices.Sort(names); !slices.Equal(names, []string{domain + "/one:1", domain + "/two:1"}) {
		t.Errorf("the imported names are %q", names)
	}
	test.Is(t, s.Export(t.Context(), io.Discard, []string{"nothing:1"}), errdefs.IsNotFound, "export of a missing image")
	// The archive is also in Docker's format.
	tag := test.Value(name.NewTag(domain + "/one:1"))(t)
	img := test.Value(tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }, &tag))(t)
	test.Equal(t, "image in docker's format", idOf(t, img), idOf(t, one))
}

func TestImportByName(t *testing.T) {
	built := layered(t, v1.Config{})
	s := openStore(t, Config{})
	names := test.Value(s.Import(t.Context(), bytes.NewReader(dockerArchive(t, map[string]v1.Image{app: built})), archive.Request{Name: "mine:2"}))(t)
	test.EqualLists(t, "names", names, []string{"docker.io/library/mine:2"})
	test.Is(t, test.Err(s.Get(app)), errdefs.IsNotFound, "get by the archive's name")
}

func TestBadArchives(t *testing.T) {
	built := layered(t, v1.Config{})
	_, source, _ := pulled(t, Config{}, built)
	own := exported(t, source, app)
	layers := test.Value(built.Layers())(t)
	last := strings.TrimPrefix(digestOf(t, layers[2]), "sha256:")
	without := func(part string) []byte {
		return rewritten(t, own, func(name string, content []byte) []byte {
			if strings.Contains(name, part) {
				return nil
			}
			return content
		})
	}
	index := func(change func(manifest map[string]any)) []byte {
		return rewritten(t, own, func(name string, content []byte) []byte {
			if name != "index.json" {
				return content
			}
			var index map[string]any
			test.Must(t, json.Unmarshal(content, &index))
			change(index["manifests"].([]any)[0].(map[string]any))
			return test.Value(json.Marshal(index))(t)
		})
	}
	two := dockerArchive(t, map[string]v1.Image{domain + "/a:1": built, domain + "/b:1": build(t, v1.Config{}, layer(t, file{name: "b"}))})
	for what, c := range map[string]struct {
		text   []byte
		req    archive.Request
		limits bounds.Limits
		want   string
	}{
		"empty input":    {want: "import: "},
		"not an archive": {text: []byte(strings.Repeat("no archive ", 200)), want: "import: "},
		"truncated":      {text: own[:len(own)/2], want: "import: "},
		"missing layer":  {text: without(last), want: "the archive lacks sha256:" + last},
		"missing index":  {text: without("index.json"), want: "import: "},
		"changed layer":  {text: rewritten(t, own, func(n string, b []byte) []byte { return flipped(n, last, b) }), want: "the archive lacks sha256:" + last},
		"no name":        {text: index(func(m map[string]any) { delete(m, "annotations") }), want: "--name"},
		"tag instead of a name": {text: index(func(m map[string]any) {
			m["annotations"] = map[string]any{"org.opencontainers.image.ref.name": "latest"}
		}), want: "--name"},
		"invalid name":            {text: index(func(m map[string]any) { m["annotations"] = map[string]any{"io.containerd.image.name": "Not A Name"} }), want: "Not A Name"},
		"wrong size":              {text: index(func(m map[string]any) { m["size"] = 7 }), want: "7"},
		"one name for two images": {text: two, req: archive.Request{Name: "one:1"}, want: "2 images"},
		"too many layers":         {text: own, limits: bounds.Limits{MaxLayers: 2}, want: "more than 2"},
		"too many files":          {text: own, limits: bounds.Limits{MaxImageEntries: 3}, want: "registry.max_image_entries"},
		"unknown snapshotter":     {text: own, req: archive.Request{Snapshotter: "nothing"}, want: "nothing"},
	} {
		t.Run(what, func(t *testing.T) {
			s := openStore(t, Config{Limits: c.limits})
			names, err := s.Import(t.Context(), bytes.NewReader(c.text), c.req)
			if err == nil || len(names) > 0 || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("the import returned %q, %v; want an invalid argument with %q", names, err, c.want)
			}
			wantLeases(t, s, 0)
			wantStored(t, s, 0, 0)
		})
	}
}

// flipped returns content, with one changed bit if name contains the text of.
func flipped(name, of string, content []byte) []byte {
	if strings.Contains(name, of) {
		content = slices.Clone(content)
		content[len(content)/2] ^= 1
	}
	return content
}

// An import whose sender disconnects leaves nothing, and a later import succeeds.
func TestInterruptedImport(t *testing.T) {
	built := build(t, v1.Config{}, bulk(t, 4<<20))
	text := dockerArchive(t, map[string]v1.Image{app: built})
	s := openStore(t, Config{})
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(text[:len(text)/2])
		w.CloseWithError(context.Canceled)
	}()
	if _, err := s.Import(t.Context(), r, archive.Request{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("the interrupted import returned %v", err)
	}
	wantStored(t, s, 0, 0)
	test.Checkf(t, test.Err(s.Import(t.Context(), bytes.NewReader(text), archive.Request{})), "a second import")
}
