package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/config/registryhosts"
)

const (
	// dialTimeout bounds one connection, and all of them, which are made at the same time.
	dialTimeout = 2 * time.Second
	// maxRegistries bounds how many are asked.
	maxRegistries = 32
)

// registries connects to those that the configuration names, and to no others. Of a node
// that is mounted elsewhere it reads the files alone: its network is not this one.
func registries(n Node) []Finding {
	var found []Finding
	if !strings.Contains(n.value("/etc/resolv.conf"), "nameserver") {
		found = append(found, warn("/etc/resolv.conf names no nameserver: registries are not found by name", "name one there, or let the node's network service do it"))
	}
	dir := n.Config.Registry.HostsDir
	var addresses []string
	for _, name := range n.list(dir) {
		if text, err := n.read(filepath.Join(dir, name, "hosts.toml")); err == nil {
			addresses = append(addresses, registryhosts.Addresses([]byte(text))...)
		}
	}
	if n.Root != "" && n.Root != "/" {
		addresses = nil
	}
	addresses = addresses[:min(len(addresses), maxRegistries)]
	failed := make([]error, len(addresses))
	var dials sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	for i, address := range addresses {
		dials.Go(func() { failed[i] = dial(ctx, address) })
	}
	dials.Wait()
	for i, err := range failed {
		if err != nil {
			found = append(found, warn(fmt.Sprintf("cannot connect to the registry at %s, which %s names: %v", addresses[i], dir, err),
				"check the node's DNS, routes and firewall; a daemon that uses a proxy may reach it all the same"))
		}
	}
	return or(found, fmt.Sprintf("a nameserver is configured; registries that %s names and that accept connections: %d", dir, len(addresses)))
}

// dial connects, and names of an error the cause only.
func dial(ctx context.Context, address string) error {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			return cause
		}
		return err
	}
	return connection.Close()
}
