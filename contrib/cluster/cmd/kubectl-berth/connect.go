package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	config.UserAgent = "kubectl-berth/" + version
	// The server bounds its clients by itself.
	config.QPS = -1
	config.WarningHandler = rest.NewWarningWriter(p.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, wrong(err)
	}
	node, err := nodev1client.NewForConfig(config)
	if err != nil {
		return nil, wrong(err)
	}
	return &server{config.Host, core, node.RuntimeClasses()}, nil
}

// explain says what to do about an error of a request.
func (s *server) explain(verb, resource string, err error) error {
	var unreachable *url.Error
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s %s: interrupted", verb, resource)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server %s rejected your credentials: %w; check the user of the kubeconfig's context", s.host, err)
	case errors.As(err, &unreachable), errors.As(err, &network):
		return fmt.Errorf("cannot reach the API server %s: %w; check --server, --context and --kubeconfig", s.host, err)
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}
