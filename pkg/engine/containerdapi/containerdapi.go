// Package containerdapi serves the engine's images and pods by the API of containerd, so that
// agents of the node (cAdvisor, ctr, mirrors, scanners, Wasm shims) find them where they look for
// containerd's.
//
// It stores nothing: images, content, leases and snapshots are those of package image; containers
// and tasks are read from the index of pods at each call. Images, content and leases are writable.
// Containers, tasks and snapshots are read-only, because pods belong to the CRI. Calls that berth
// does not implement return Unimplemented.
//
// There is one namespace, [Namespace]. All others are empty.
package containerdapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	containerd "github.com/containerd/containerd/v2/version"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// Deps are the dependencies of Server.
type Deps struct {
	Pods   *pod.Registry
	Images *image.Store
	Stats  Stats
	Events *Broker
	// OOM is called for each out-of-memory kill that shims publish.
	OOM func(task string)
	// Version and Revision are the daemon's own.
	Version, Revision string
}

// Server serves the API. Serve may be called several times.
type Server struct {
	deps Deps
}

// registerer is a service from containerd's own packages.
type registerer interface{ Register(*grpc.Server) error }

// New returns a server of d.
func New(d Deps) *Server { return &Server{deps: d} }

const (
	// maxMessage is containerd's own limit of messages, in bytes.
	maxMessage = 16 << 20
	// maxConnections limits connected clients; further ones wait.
	maxConnections = 256
	// maxStreams limits the open calls of one connection.
	maxStreams = 64
)

// Serve serves l until ctx ends, and closes l. The interceptors of options run first.
func (s *Server) Serve(ctx context.Context, l net.Listener, to Audience, options ...grpc.ServerOption) error {
	server, err := s.server(ctx, to, options)
	if err != nil {
		return errors.Join(fmt.Errorf("containerd API: %w", err), l.Close())
	}
	defer context.AfterFunc(ctx, server.Stop)()
	// A client with many connections must not use up the daemon's descriptors.
	if err := server.Serve(netutil.LimitListener(l, maxConnections)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve the containerd API: %w", err)
	}
	return nil
}

func (s *Server) server(ctx context.Context, to Audience, options []grpc.ServerOption) (*grpc.Server, error) {
	gate := newGate(to)
	server := grpc.NewServer(append(options,
		grpc.ChainUnaryInterceptor(gate.unary), grpc.ChainStreamInterceptor(gate.stream),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
	)...)
	opened := newStreams() // audiences must not use each other's streams
	services, err := containerdServices(ctx, s.deps, opened)
	if err != nil {
		return nil, err
	}
	for _, service := range services {
		if err := service.Register(server); err != nil {
			return nil, err
		}
	}
	seen := &view{pods: s.deps.Pods, images: s.deps.Images, selfChecks: to == Shims}
	versionapi.RegisterVersionServer(server, version{version: s.deps.Version, revision: s.deps.Revision})
	namespacesapi.RegisterNamespacesServer(server, onlyNamespace{})
	imagesapi.RegisterImagesServer(server, &imageService{store: s.deps.Images.Clients().Images()})
	containersapi.RegisterContainersServer(server, &containerService{view: seen})
	tasksapi.RegisterTasksServer(server, &taskService{view: seen, stats: s.deps.Stats})
	eventsapi.RegisterEventsServer(server, &eventService{broker: s.deps.Events, oom: s.deps.OOM})
	diffapi.RegisterDiffServer(server, diffapi.UnimplementedDiffServer{})
	transferapi.RegisterTransferServer(server, &transferService{images: s.deps.Images, streams: opened})
	healthapi.RegisterHealthServer(server, health.NewServer())
	return server, nil
}

// version serves the API version, which clients compare, and berth's version and revision.
type version struct {
	versionapi.UnimplementedVersionServer
	version, revision string
}

func (v version) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: apiVersion(containerd.Version, v.version), Revision: v.revision}, nil
}

// apiVersion is a semantic version: containerd's, because the API is containerd's, with berth's as
// its build metadata. Pure.
func apiVersion(api, own string) string {
	build := strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-', r == '.':
			return r
		}
		return '.'
	}, own)
	base, _, _ := strings.Cut(api, "+")
	return "v" + strings.TrimPrefix(base, "v") + "+berth." + build
}

type onlyNamespace struct {
	namespacesapi.UnimplementedNamespacesServer
}

// Get implements namespacesapi.NamespacesServer. As in containerd every namespace exists; it has no
// labels.
func (onlyNamespace) Get(_ context.Context, r *namespacesapi.GetNamespaceRequest) (*namespacesapi.GetNamespaceResponse, error) {
	return &namespacesapi.GetNamespaceResponse{Namespace: &namespacesapi.Namespace{Name: r.GetName()}}, nil
}

func (onlyNamespace) List(context.Context, *namespacesapi.ListNamespacesRequest) (*namespacesapi.ListNamespacesResponse, error) {
	return &namespacesapi.ListNamespacesResponse{Namespaces: []*namespacesapi.Namespace{{Name: Namespace}}}, nil
}
