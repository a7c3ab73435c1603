package config

import (
	"fmt"
	"time"
)

// NRI is where plugins of the Node Resource Interface come from.
type NRI struct {
	// Disable turns everything off.
	Disable bool `toml:"disable"`
	// SocketPath is where plugins connect; empty is nowhere.
	SocketPath string `toml:"socket_path"`
	// PluginPath holds plugins that are started with the daemon.
	PluginPath string `toml:"plugin_path"`
	// PluginConfigPath holds the configurations of those.
	PluginConfigPath string `toml:"plugin_config_path"`
	// PluginRegistrationTimeout is how long a plugin may take to register.
	PluginRegistrationTimeout time.Duration `toml:"plugin_registration_timeout"`
	// PluginRequestTimeout is how long a plugin may take to answer a request.
	PluginRequestTimeout time.Duration `toml:"plugin_request_timeout"`
}

func (v *validator) nri(n *NRI, server string) {
	if p := n.SocketPath; p != "" {
		v.absolute("nri.socket_path", p)
		switch {
		case len(p) > maxSocketPath:
			v.wrong("nri.socket_path", fmt.Sprintf("has %d bytes; the limit for unix socket paths is %d", len(p), maxSocketPath), "")
		case p == server:
			v.wrong("nri.socket_path", "is the same as server.socket; plugins need a separate socket", "")
		}
	}
	v.absolute("nri.plugin_path", n.PluginPath)
	v.absolute("nri.plugin_config_path", n.PluginConfigPath)
	v.positive("nri.plugin_registration_timeout", n.PluginRegistrationTimeout)
	v.positive("nri.plugin_request_timeout", n.PluginRequestTimeout)
}

func (v *validator) positive(key string, t time.Duration) {
	if t <= 0 {
		v.wrong(key, "must be more than 0", "")
	}
}
