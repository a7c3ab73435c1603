package config

import (
	"fmt"
	"time"
)

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
