package containerdapi

import (
	"context"
	"strings"

	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	containerd "github.com/containerd/containerd/v2/version"
	"google.golang.org/protobuf/types/known/emptypb"
)

// version serves the version of the API, which clients compare, and berth's own.
type version struct {
	versionapi.UnimplementedVersionServer
	version, revision string
}

func (v version) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: apiVersion(containerd.Version, v.version), Revision: v.revision}, nil
}

// apiVersion is a semantic version: containerd's, whose API this is, as its releases write
// it, with that of berth as its build. Pure.
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

// Get implements namespacesapi.NamespacesServer. Every namespace is there, as it is in
// containerd, and has no labels.
func (onlyNamespace) Get(_ context.Context, r *namespacesapi.GetNamespaceRequest) (*namespacesapi.GetNamespaceResponse, error) {
	return &namespacesapi.GetNamespaceResponse{Namespace: &namespacesapi.Namespace{Name: r.GetName()}}, nil
}

func (onlyNamespace) List(context.Context, *namespacesapi.ListNamespacesRequest) (*namespacesapi.ListNamespacesResponse, error) {
	return &namespacesapi.ListNamespacesResponse{Namespaces: []*namespacesapi.Namespace{{Name: Namespace}}}, nil
}
