package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	nodev1client "k8s.io/client-go/kubernetes/typed/node/v1"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // ways to log in that a kubeconfig may name
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Discovery reads every group of a server at once; these are kubectl's own limits.
const (
	discoveryQPS   = 50
	discoveryBurst = 300
	// pageSize is that of lists, as kubectl has it.
	pageSize = 500
)

// server is the API server, as the user of the kubeconfig sees it.
type server struct {
	// host is its URL, for texts.
	host    string
	core    corev1client.CoreV1Interface
	classes nodev1client.RuntimeClassInterface
	// objects are of any kind.
	objects dynamic.Interface
}

// connect makes the clients. Nothing is asked yet. An error is one of what was given.
func (p *program) connect() (*server, error) {
	config, err := p.config.ToRESTConfig()
	if err != nil {
		var file *fs.PathError
		switch {
		case clientcmd.IsEmptyConfig(err):
			err = errors.New("no kubeconfig found: use --kubeconfig or --server, or set KUBECONFIG")
		case errors.As(err, &file) && file.Path == *p.config.KubeConfig:
			err = fmt.Errorf("--kubeconfig %s: %w", file.Path, file.Err)
		}
		return nil, wrong(err)
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "kubectl-berth/" + version
	// The server bounds its clients by itself.
	config.QPS = -1
	config.WarningHandler = rest.NewWarningWriter(p.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	s, err := clients(config)
	if err != nil {
		return nil, wrong(err)
	}
	return s, nil
}

// clients are those of a configuration.
func clients(config *rest.Config) (*server, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	core, err := corev1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	node, err := nodev1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return &server{config.Host, core, node.RuntimeClasses(), objects}, nil
}

var inNamespace = regexp.MustCompile(`in the namespace "([^"]+)"`)

// scope is the flag by which kubectl asks about the right that was missing: without one it
// asks about a namespace that may be another one.
func scope(resource string, err error) string {
	if of := inNamespace.FindStringSubmatch(err.Error()); of != nil {
		return " -n " + of[1]
	}
	if resource == "pods" || resource == "events" {
		return " -A"
	}
	return ""
}

// page is how a client of one kind is asked for a part of a list.
type page[L runtime.Object] func(context.Context, metav1.ListOptions) (L, error)

// list reads a whole list, a page at a time. If it has become too old on the way it is begun
// anew.
func list[T any, L runtime.Object](ctx context.Context, s *server, resource string, read page[L], options metav1.ListOptions) ([]T, error) {
	var all []T
	options.Limit = pageSize
	for {
		part, err := read(ctx, options)
		if options.Continue != "" && apierrors.IsResourceExpired(err) {
			all = nil
			options.Continue, options.Limit = "", 0
			part, err = read(ctx, options)
		}
		if err != nil {
			return nil, s.explain("list", resource, err)
		}
		if err := meta.EachListItem(part, func(o runtime.Object) error {
			one, ok := any(o).(*T)
			if !ok {
				return fmt.Errorf("unexpected %T in the API server's list of %s", o, resource)
			}
			all = append(all, *one)
			return nil
		}); err != nil {
			return nil, err
		}
		about, err := meta.ListAccessor(part)
		if err != nil {
			return nil, err
		}
		if options.Continue = about.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// explain says what to do about an error of a request.
func (s *server) explain(verb, resource string, err error) error {
	var unreachable *url.Error
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s %s: interrupted", verb, resource)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; you need the verb %q on %q, see \"kubectl auth can-i %s %s%s\"", err, verb, resource, verb, resource, scope(resource, err))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server %s rejected your credentials: %w; check the user of the kubeconfig's context", s.host, err)
	case errors.As(err, &unreachable), errors.As(err, &network):
		return fmt.Errorf("cannot reach the API server %s: %w; check --server, --context and --kubeconfig", s.host, err)
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}
