package standard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
)

// common are the keys of every plugin, and those that libcni adds for a call.
// https://www.cni.dev/docs/spec/#section-1-network-configuration-format
type common struct {
	CNIVersion    string                     `json:"cniVersion"`
	Name          string                     `json:"name"`
	Type          string                     `json:"type"`
	Capabilities  map[string]bool            `json:"capabilities"`
	PrevResult    json.RawMessage            `json:"prevResult"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

// layer3 are the keys of plugins that give a pod addresses.
type layer3 struct {
	DNS           types.DNS             `json:"dns"`
	IPAM          *allocator.IPAMConfig `json:"ipam"`
	MTU           int                   `json:"mtu"`
	IPMasq        bool                  `json:"ipMasq"`
	IPMasqBackend *string               `json:"ipMasqBackend"`
}

var errUnknown = errors.New("the plugin itself must serve this configuration")

func (l *layer3) check() error {
	switch {
	case l.IPAM == nil || l.IPAM.Type != "host-local" || l.IPAM.ResolvConf != "" || slices.Contains(l.IPAM.Routes, nil),
		l.IPMasqBackend != nil && *l.IPMasqBackend != "nftables":
		return errUnknown
	}
	return nil
}

// The plugins portmap and bandwidth are replaced only where they have nothing to do. Configurations
// with limits of their own, or with values that portmap checks, are not known.
type (
	portmapConf struct {
		common
		SNAT *bool `json:"snat"`
	}
	bandwidthConf struct{ common }
	loopbackConf  struct{ common }
)

func (*portmapConf) check() error   { return nil }
func (*bandwidthConf) check() error { return nil }
func (*loopbackConf) check() error  { return nil }

// lacks returns a function that reports whether a call has no value for a capability.
func lacks(capability string) func(config []byte) bool {
	return func(config []byte) bool {
		var c common
		return json.Unmarshal(config, &c) == nil && slices.Contains([]string{"", "null", "[]", "{}"}, string(c.RuntimeConfig[capability]))
	}
}

// checked is a configuration that can refuse values.
type checked[T any] interface {
	*T
	check() error
}

func knows[T any, P checked[T]](config []byte) bool { return decode[T, P](config, new(T)) == nil }

// decode reads a plugin's configuration and refuses unknown keys.
func decode[T any, P checked[T]](config []byte, to P) error {
	d := json.NewDecoder(bytes.NewReader(config))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return to.check()
}
