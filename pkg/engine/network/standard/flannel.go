package standard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// flannelConf is the configuration of the flannel plugin, which runs the bridge plugin with the
// subnets that flannel's daemon wrote to a file. Other delegates are not known.
// https://github.com/flannel-io/cni-plugin
type flannelConf struct {
	common
	SubnetFile string         `json:"subnetFile"`
	DataDir    string         `json:"dataDir"`
	IPAM       map[string]any `json:"ipam"`
	Delegate   map[string]any `json:"delegate"`
}

func (f *flannelConf) check() error {
	for key, value := range f.Delegate {
		key = strings.ToLower(key) // as encoding/json reads keys
		if key == "name" || key == "ipam" || key == "type" && value != "bridge" {
			return errUnknown
		}
	}
	if _, is := f.IPAM["routes"].([]any); !is && f.IPAM["routes"] != nil {
		return errUnknown
	}
	return nil
}

func decodeFlannel(config []byte) (*flannelConf, error) {
	f := &flannelConf{SubnetFile: "/run/flannel/subnet.env", DataDir: "/var/lib/cni/flannel"}
	return f, decode(config, f)
}

// dataFile is where the plugin stores the configuration of the bridge plugin until DEL.
func (f *flannelConf) dataFile(c call) string { return filepath.Join(f.DataDir, c.containerID) }

// delegate returns the configuration of the bridge plugin for that of flannel.
func delegate(config []byte) ([]byte, error) {
	f, err := decodeFlannel(config)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(f.SubnetFile)
	if err != nil {
		return nil, err
	}
	written := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), "=")
		written[key] = value
	}
	networks, err1 := subnets(written, true, "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK")
	own, err2 := subnets(written, false, "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
	mtu, err3 := strconv.ParseUint(written["FLANNEL_MTU"], 10, 32)
	_, err4 := strconv.ParseBool(written["FLANNEL_IPMASQ"])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("%s: %w", f.SubnetFile, err)
	}
	routes, _ := f.IPAM["routes"].([]any)
	for _, network := range networks {
		routes = append(routes, types.Route{Dst: *network})
	}
	var ranges [][]any
	for _, subnet := range own {
		ranges = append(ranges, []any{map[string]string{"subnet": subnet.String()}})
	}
	ipam := map[string]any{"type": "host-local"}
	maps.Copy(ipam, f.IPAM)
	ipam["routes"], ipam["ranges"] = routes, ranges
	bridge := map[string]any{"type": "bridge", "isGateway": true, "ipMasq": written["FLANNEL_IPMASQ"] != "true", "mtu": mtu}
	maps.Copy(bridge, f.Delegate)
	bridge["name"], bridge["cniVersion"], bridge["ipam"] = f.Name, f.CNIVersion, ipam
	if f.RuntimeConfig != nil {
		bridge["runtimeConfig"] = f.RuntimeConfig
	}
	return json.Marshal(bridge)
}

// subnets returns the different subnets that the daemon wrote under at least one of the keys. A value
// may be a list if lists is set.
func subnets(written map[string]string, lists bool, keys ...string) (all []*net.IPNet, err error) {
	for _, key := range keys {
		value, has := written[key]
		if !has {
			continue
		}
		texts := []string{value}
		if lists {
			texts = strings.Split(value, ",")
		}
		for _, text := range texts {
			_, subnet, err := net.ParseCIDR(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			if !slices.ContainsFunc(all, func(other *net.IPNet) bool { return other.String() == subnet.String() }) {
				all = append(all, subnet)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s is missing", keys[0])
	}
	return all, nil
}

// addFlannel writes the file that a later DEL of the plugin needs. delFlannel needs none.
func (p *Plugins) addFlannel(ctx context.Context, c call) (types.Result, error) {
	f, err := decodeFlannel(c.config)
	if err != nil {
		return nil, err
	}
	if c.config, err = delegate(c.config); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(f.DataDir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(f.dataFile(c), c.config, 0o600); err != nil {
		return nil, err
	}
	return p.addBridge(ctx, c)
}

func (p *Plugins) delFlannel(ctx context.Context, c call) error {
	f, err := decodeFlannel(c.config)
	if err != nil {
		return err
	}
	if err := p.delBridge(ctx, c); err != nil {
		return err
	}
	_ = os.Remove(f.dataFile(c)) // the plugin ignores this error, too
	return nil
}
