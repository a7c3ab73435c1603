package network

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// Interface is one of a pod's interfaces, or of those that plugins made for it on the
// node, with its addresses. Its JSON is that of containerd's verbose status.
type Interface struct {
	IPConfigs []Address
	Mac       string
	// Sandbox is the path of the namespace that it is in; empty for the node's.
	Sandbox string
}

// Address is one of an Interface, without prefix length.
type Address struct{ IP, Gateway string }

// Described is what the plugins of all networks of a pod answered, by the names of
// interfaces. Its JSON is that of containerd's verbose status.
type Described struct {
	Interfaces map[string]*Interface
	DNS        []types.DNS
	Routes     []*types.Route
}

// Described tells of all networks that the pod was connected to. Pure.
func (r *Result) Described() (Described, error) {
	d := Described{Interfaces: map[string]*Interface{}}
	for _, a := range r.Attachments {
		if len(a.Result) == 0 {
			continue
		}
		if err := d.add(a); err != nil {
			return d, fmt.Errorf("result of network %q: %w", a.Network, err)
		}
	}
	return d, nil
}

func (d *Described) add(a Attachment) error {
	stored, err := create.CreateFromBytes(a.Result)
	if err != nil {
		return err
	}
	result, err := types100.NewResultFromResult(stored)
	if err != nil {
		return err
	}
	for _, i := range result.Interfaces {
		d.Interfaces[i.Name] = &Interface{Mac: i.Mac, Sandbox: i.Sandbox}
	}
	for _, ip := range result.IPs {
		name := a.Interface
		if n := ip.Interface; n != nil && *n >= 0 && *n < len(result.Interfaces) {
			name = result.Interfaces[*n].Name
		}
		at := d.Interfaces[name]
		if at == nil { // plugins need not list interfaces
			at = &Interface{Sandbox: a.NetNS}
			d.Interfaces[name] = at
		}
		address := Address{IP: ip.Address.IP.String()}
		if len(ip.Gateway) > 0 {
			address.Gateway = ip.Gateway.String()
		}
		at.IPConfigs = append(at.IPConfigs, address)
	}
	d.DNS, d.Routes = append(d.DNS, result.DNS), append(d.Routes, result.Routes...)
	return nil
}
