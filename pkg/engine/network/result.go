package network

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// Result is the outcome of Setup. It is stored as JSON in the sandbox's record; with it, Teardown
// needs no other file.
type Result struct {
	// IPs are the pod's addresses on eth0, without prefix length, in the plugins' order; the first
	// is the primary one. There is at least one.
	IPs []string `json:"ips"`
	// Raw is CNI's result for eth0, in the version of the configuration.
	Raw json.RawMessage `json:"raw,omitempty"`
	// Attachments are the networks that the pod was connected to.
	Attachments []Attachment `json:"attachments"`
}

// Attachment is one network of a pod: the input of ADD, which DEL needs again, and its result.
type Attachment struct {
	// Network is the name in the configuration.
	Network string `json:"network"`
	// Interface is the name inside the pod, eth0 for the first.
	Interface string `json:"interface"`
	// NetNS is the path of the namespace at the time of ADD.
	NetNS string `json:"netns"`
	// Config is the configuration list, with all its plugins in it.
	Config json.RawMessage `json:"config"`
	// Args are the CNI_ARGS.
	Args [][2]string `json:"args,omitempty"`
	// Capabilities are the capability arguments that the configuration declares.
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	// InProcess is set if package standard serves it, not plugins.
	InProcess bool `json:"inProcess,omitempty"`
	// Masqueraded are the addresses in this process's table, with the lengths of their subnets.
	Masqueraded []netip.Prefix `json:"masqueraded,omitempty"`
	// Result is CNI's result; nil while ADD has not completed.
	Result json.RawMessage `json:"result,omitempty"`
}

func attachments(lists []*libcni.NetworkConfigList, pod Pod) ([]Attachment, error) {
	offered := capabilities(pod)
	out := make([]Attachment, len(lists))
	for i, list := range lists {
		asked, err := declared(list, offered)
		if err != nil {
			return nil, err
		}
		out[i] = Attachment{
			Network:      list.Name,
			Interface:    fmt.Sprintf("eth%d", i),
			NetNS:        pod.NetNS,
			Config:       list.Bytes,
			Args:         cniArgs(pod),
			Capabilities: asked,
		}
	}
	return out, nil
}

func attachmentFrom(cached *libcni.NetworkAttachment) Attachment {
	a := Attachment{
		Network: cached.Network, Interface: cached.IfName, NetNS: cached.NetNS, Config: cached.Config,
		Args: cached.CniArgs, Capabilities: map[string]json.RawMessage{},
	}
	for name, value := range cached.CapabilityArgs {
		if b, err := json.Marshal(value); err == nil { // always: libcni read the value as JSON
			a.Capabilities[name] = b
		}
	}
	return a
}

// defaultInterface is the interface with a pod's addresses, by convention.
const defaultInterface = "eth0"

// cniArgs returns the arguments by which plugins identify a pod.
func cniArgs(pod Pod) [][2]string {
	return [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", pod.Namespace},
		{"K8S_POD_NAME", pod.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", pod.ID},
		{"K8S_POD_UID", pod.UID},
	}
}

// capabilities returns all capability arguments for which a pod has a value.
// https://www.cni.dev/docs/conventions/#dynamic-plugin-specific-fields-capabilities--runtime-configuration
func capabilities(pod Pod) map[string]any {
	values := map[string]any{}
	if len(pod.PortMappings) > 0 {
		values["portMappings"] = pod.PortMappings
	}
	if pod.Bandwidth != nil {
		values["bandwidth"] = pod.Bandwidth
	}
	if pod.DNS != nil {
		values["dns"] = pod.DNS
	}
	if pod.CgroupPath != "" {
		values["cgroupPath"] = pod.CgroupPath
	}
	if len(pod.Annotations) > 0 {
		values["io.kubernetes.cri.pod-annotations"] = pod.Annotations
	}
	return values
}

// declared keeps the arguments that a plugin of the list declares, because the others need not be
// stored with the pod. libcni passes each plugin its own.
func declared(list *libcni.NetworkConfigList, offered map[string]any) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	for _, plugin := range list.Plugins {
		for name, wanted := range plugin.Network.Capabilities {
			value, ok := offered[name]
			if !wanted || !ok {
				continue
			}
			b, err := json.Marshal(value)
			if err != nil {
				return nil, fmt.Errorf("capability %s: %w", name, err)
			}
			out[name] = b
		}
	}
	return out, nil
}

func (a *Attachment) runtimeConf(id, netns string) *libcni.RuntimeConf {
	capabilities := make(map[string]any, len(a.Capabilities))
	for name, value := range a.Capabilities {
		capabilities[name] = value
	}
	return &libcni.RuntimeConf{
		ContainerID:    id,
		NetNS:          netns,
		IfName:         a.Interface,
		Args:           a.Args,
		CapabilityArgs: capabilities,
	}
}

// list parses the attachment's configuration.
func (a *Attachment) list() (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromBytes(a.Config)
	if err != nil {
		return nil, fmt.Errorf("stored configuration of network %q: %w", a.Network, err)
	}
	return list, nil
}

// addresses returns the addresses that a result assigns to an interface of the pod.
func addresses(r types.Result, interfaceName string) ([]net.IPNet, error) {
	result, err := types100.NewResultFromResult(r)
	if err != nil {
		return nil, fmt.Errorf("CNI result: %w", err)
	}
	var all []net.IPNet
	for _, ip := range result.IPs {
		if onInterface(result, ip.Interface, interfaceName) {
			all = append(all, ip.Address)
		}
	}
	return all, nil
}

// onInterface reports whether an address with that interface index is on the pod's interface. An
// address without an index is, because there is only one interface.
func onInterface(r *types100.Result, index *int, name string) bool {
	if index == nil {
		return true
	}
	if *index < 0 || *index >= len(r.Interfaces) {
		return false
	}
	i := r.Interfaces[*index]
	return i.Name == name && i.Sandbox != ""
}

// Interface is a pod's interface, or one that plugins created for it on the node, with its
// addresses. Its JSON is that of containerd's verbose status.
type Interface struct {
	IPConfigs []Address
	Mac       string
	// Sandbox is the path of the interface's namespace; empty for the node's.
	Sandbox string
}

// Address is an address of an Interface, without prefix length.
type Address struct{ IP, Gateway string }

// Described is the combined result of all networks of a pod, by interface name. Its JSON is that of
// containerd's verbose status.
type Described struct {
	Interfaces map[string]*Interface
	DNS        []types.DNS
	Routes     []*types.Route
}

// Described combines the results of all networks of the pod.
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
