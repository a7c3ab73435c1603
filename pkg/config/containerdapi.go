package config

import (
	"fmt"
	"path/filepath"
)

func (v *validator) containerdAPI(c *Config) {
	p := c.ContainerdAPI.Socket
	if p == "" {
		return
	}
	const key = "containerd_api.socket"
	v.absolute(key, p)
	same := func(other string) bool { return other != "" && filepath.Clean(p) == filepath.Clean(other) }
	switch {
	case len(p) > maxSocketPath:
		v.wrong(key, fmt.Sprintf("has %d bytes; the limit for unix socket paths is %d", len(p), maxSocketPath), "")
	case same(filepath.Join(c.Engine.State, "containerd.sock")):
		v.wrong(key, "is the socket of shims in engine.state; agents need a separate socket", "")
	case same(c.Server.Socket):
		v.wrong(key, "is the same as server.socket; agents need a separate socket", "")
	case same(c.Server.Admin()):
		v.wrong(key, "is the socket of the management API; agents need a separate socket", "")
	case same(c.NRI.SocketPath):
		v.wrong(key, "is the same as nri.socket_path; agents need a separate socket", "")
	}
}
