package containerdapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// A client's resolver is accepted if it requests what the node does anyway.
func TestRegistriesAreTheNodes(t *testing.T) {
	for _, c := range []struct {
		name     string
		resolver *transfer.RegistryResolver
		refused  bool
	}{
		{"registry.test/a", nil, false},
		{"registry.test/a", &transfer.RegistryResolver{DefaultScheme: "http"}, true},
		{"127.0.0.1:5000/a", &transfer.RegistryResolver{DefaultScheme: "http"}, false},
		{"localhost/a", &transfer.RegistryResolver{DefaultScheme: "http"}, false},
		{"localhost:5000/a", &transfer.RegistryResolver{DefaultScheme: "https"}, true},
		{"localhost:5000/a", &transfer.RegistryResolver{DefaultScheme: "http", HostDir: "/x"}, true},
		{"localhost.test/a", &transfer.RegistryResolver{DefaultScheme: "http"}, true},
	} {
		named := test.Value(reference.ParseDockerRef(c.name))(t)
		if err := checkResolver(c.resolver, named); errdefs.IsInvalidArgument(err) != c.refused {
			t.Errorf("%s with resolver %v: %v", c.name, c.resolver, err)
		}
	}
}

func TestSlowArchivesAreGivenUp(t *testing.T) {
	const text = "an archive"
	for name, c := range map[string]struct {
		pace pace
		want error
	}{
		"in time":               {pace{}, nil},
		"too slow":              {pace{waited: paceTimeout, moved: paceBytes - 1}, errTooSlow},
		"slow, but fast enough": {pace{waited: paceTimeout, moved: paceBytes}, nil},
	} {
		c.pace.giveUp = func() {}
		got, err := io.ReadAll(&pacedReader{from: iotest.OneByteReader(strings.NewReader(text)), pace: c.pace})
		if !errors.Is(err, c.want) || err == nil && string(got) != text {
			t.Errorf("%s: read %q, %v", name, got, err)
		}
		var to strings.Builder
		_, err = io.WriteString(&pacedWriter{to: &to, pace: c.pace}, text)
		if !errors.Is(err, c.want) || err == nil && to.String() != text {
			t.Errorf("%s: wrote %q, %v", name, to.String(), err)
		}
	}
}

func TestTransfersThatAreRefused(t *testing.T) {
	s := &transferService{images: newServer(t).deps.Images, streams: newStreams()}
	silent := func(*transfer.Progress) {}
	store := &transfer.ImageStore{Name: "registry.test/app:1"}
	for name, c := range map[string]struct {
		from, to any
		is       func(error) bool
	}{
		"push":               {store, &transfer.OCIRegistry{}, errdefs.IsNotImplemented},
		"own hosts":          {&transfer.OCIRegistry{Reference: "a", Resolver: &transfer.RegistryResolver{HostDir: "/x"}}, store, errdefs.IsInvalidArgument},
		"plain http":         {&transfer.OCIRegistry{Reference: "a", Resolver: &transfer.RegistryResolver{DefaultScheme: "http"}}, store, errdefs.IsInvalidArgument},
		"a bad name":         {&transfer.OCIRegistry{Reference: "A B"}, store, errdefs.IsInvalidArgument},
		"another platform":   {&transfer.OCIRegistry{Reference: "a"}, &transfer.ImageStore{Platforms: []*types.Platform{{OS: "windows", Architecture: "amd64"}}}, errdefs.IsInvalidArgument},
		"no such stream":     {&transfer.ImageImportStream{Stream: "x"}, store, errdefs.IsNotFound},
		"nothing to export":  {&transfer.ImageStore{}, &transfer.ImageExportStream{}, errdefs.IsInvalidArgument},
		"an unknown image":   {&transfer.ImageStore{Name: "registry.test/no:1"}, store, errdefs.IsNotFound},
		"no such credential": {&transfer.OCIRegistry{Reference: "a", Resolver: &transfer.RegistryResolver{AuthStream: "x"}}, store, errdefs.IsNotFound},
	} {
		if err := s.transfer(namespaces.WithNamespace(t.Context(), disk.Namespace), c.from, c.to, silent); !c.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlatformsOfClients(t *testing.T) {
	own := platforms.DefaultSpec()
	node := &types.Platform{OS: own.OS, Architecture: own.Architecture, Variant: own.Variant}
	wasm := &types.Platform{OS: "wasi", Architecture: "wasm"}
	for want, asked := range map[catalog.Platform][][]*types.Platform{
		catalog.AnyPlatform:  {nil, {node, wasm}, {wasm, node}},
		catalog.NodePlatform: {{node}, {node, node}},
		catalog.WasmPlatform: {{wasm}, {wasm, {OS: "wasip1", Architecture: "wasm"}}},
	} {
		for _, a := range asked {
			test.Equal(t, fmt.Sprint(a), test.Value(platformOf(a))(t), want)
		}
	}
	test.Is(t, test.Err(platformOf([]*types.Platform{node, {OS: "linux", Architecture: "s390x"}})), errdefs.IsInvalidArgument, "a platform of another machine")
}

func TestStreamsAreBounded(t *testing.T) {
	s := newStreams()
	first, end := context.WithCancel(t.Context())
	test.Must(t, s.Register(first, "first", nil))
	for i := range maxClientStreams - 1 {
		test.Must(t, s.Register(t.Context(), fmt.Sprint(i), nil))
	}
	test.Is(t, s.Register(t.Context(), "one more", nil), errdefs.IsResourceExhausted, "one stream too many")
	test.Is(t, s.Register(t.Context(), "first", nil), errdefs.IsAlreadyExists, "a second stream of the same name")
	test.Check(t, test.Err(s.Get(context.Background(), "0")))
	test.Is(t, test.Err(s.Get(context.Background(), "0")), errdefs.IsNotFound, "the second Get of a stream")
	end()
	test.Must(t, s.Register(t.Context(), "first", nil))
}
