package config

import (
	"fmt"
	"path/filepath"
)

// ContainerdAPI is the API of containerd for agents of the node.
type ContainerdAPI struct {
	// Socket is where it is served; empty is nowhere.
	Socket string `toml:"socket"`
}

func (v *validator) containerdAPI(c *Config) {
	p := c.ContainerdAPI.Socket
	if p == "" {
		return
	}
	const key = "containerd_api.socket"
	v.absolute(key, p)
	switch {
	case len(p) > maxSocketPath:
		v.wrong(key, fmt.Sprintf("has %d bytes; the limit for unix socket paths is %d", len(p), maxSocketPath), "")
	case p != filepath.Clean(p):
		v.wrong(key, fmt.Sprintf("%q has parts that lead nowhere", p), filepath.Clean(p))
	case p == filepath.Join(c.Engine.State, "containerd.sock"):
		v.wrong(key, "is the socket of shims in engine.state; agents need a separate socket", "")
	case p == c.Server.Socket:
		v.wrong(key, "is the same as server.socket; agents need a separate socket", "")
	case p == c.Server.Admin():
		v.wrong(key, "is the socket of the management API; agents need a separate socket", "")
	case p == c.NRI.SocketPath:
		v.wrong(key, "is the same as nri.socket_path; agents need a separate socket", "")
	}
}
