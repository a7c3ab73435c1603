// Package kubeletconf finds the kubelet of a node, or k3s, and generates the drop-in that sets its
// endpoint to berth. It changes no file of the kubelet.
package kubeletconf

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Files with a kubelet's settings. Files of flags win over files of configuration.
const (
	Config         = "/var/lib/kubelet/config.yaml"
	InstanceConfig = "/var/lib/kubelet/instance-config.yaml"
	KubeadmFlags   = "/var/lib/kubelet/kubeadm-flags.env"
	k3sConfig      = "/etc/rancher/k3s/config.yaml"
)

// The drop-ins that set the endpoint of a kubelet, or of k3s, to berth.
const (
	DropIn    = "/etc/systemd/system/kubelet.service.d/99-berth.conf"
	k3sDropIn = k3sConfig + ".d/99-berth.yaml"
)

// flagFiles are in order of precedence, as far as known: later ones win.
var flagFiles = []string{
	"/lib/systemd/system/kubelet.service", "/lib/systemd/system/kubelet.service.d/*.conf",
	"/usr/lib/systemd/system/kubelet.service", "/usr/lib/systemd/system/kubelet.service.d/*.conf",
	"/etc/default/kubelet", "/etc/sysconfig/kubelet",
	"/etc/systemd/system/kubelet.service", "/etc/systemd/system/kubelet.service.d/*.conf",
	KubeadmFlags, DropIn,
}

// k3sUnits are the units of servers and agents.
var k3sUnits = []string{"k3s", "k3s-agent"}

// Kubelet is a kubelet as found on the node.
type Kubelet struct {
	// Unit is the service to restart. K3s means that the kubelet is part of k3s.
	Unit string
	K3s  bool
	// configs are its configuration files, flags the files with flags; later ones win.
	configs, flags []file
	// arguments are its command line if it runs.
	arguments []string
}

type file struct{ path, text string }

// Berth is the endpoint of berth.
const (
	Berth       = "unix://" + berthSocket
	berthSocket = "/run/berth/berth.sock"
)

// defaultEndpoint is the kubelet's default.
const defaultEndpoint = "unix:///run/containerd/containerd.sock"

var (
	endpointKeys  = []string{"containerRuntimeEndpoint", "imageServiceEndpoint"}
	endpointFlags = []string{"container-runtime-endpoint", "image-service-endpoint"}
)

// DropIn returns the path of the drop-in for this kubelet.
func (k Kubelet) DropIn() string {
	if k.K3s {
		return k3sDropIn
	}
	return DropIn
}

// Endpoint returns the effective endpoint, as far as files and flags show.
func (k Kubelet) Endpoint() string {
	if k.K3s && len(k.filesWithBerth()) > 0 {
		return Berth // k3s hides its command line, which overrides files
	}
	now := k.setting(0)
	if now == "" && !k.K3s {
		return defaultEndpoint
	}
	return now
}

// Setting returns an effective value and its source, by its key in configuration and its flag. k3s
// uses the name of the flag as the key.
func (k Kubelet) Setting(key, flag string) (value, from string) {
	if k.K3s {
		key = flag
	}
	set := func(v, place string) {
		if v != "" {
			value, from = v, place
		}
	}
	for _, f := range k.configs {
		set(yamlValue(f.text, key), f.path)
	}
	for _, f := range k.flags {
		set(flagValue(f.text, flag), f.path)
	}
	for _, v := range flagsOf(k.arguments, flag) {
		set(v, "its command line")
	}
	return value, from
}

func (k Kubelet) setting(n int) string {
	value, _ := k.Setting(endpointKeys[n], endpointFlags[n])
	return value
}

// Configured reports whether the kubelet runs or has a configuration.
func (k Kubelet) Configured() bool {
	return len(k.arguments) > 0 || len(k.configs) > 0 || k.setting(0) != ""
}

// WithoutDropIn returns the kubelet as it will be when restarted without the drop-in.
func (k Kubelet) WithoutDropIn() Kubelet {
	ours := func(f file) bool { return f.path == k.DropIn() }
	k.configs = slices.DeleteFunc(slices.Clone(k.configs), ours)
	k.flags = slices.DeleteFunc(slices.Clone(k.flags), ours)
	k.arguments = nil
	return k
}

// IsBerth reports whether an endpoint is berth's, also through the link /var/run.
func IsBerth(endpoint string) bool { return strings.HasSuffix(endpoint, berthSocket) }

// AsURL returns an endpoint with its scheme.
func AsURL(endpoint string) string {
	if strings.Contains(endpoint, "://") {
		return endpoint
	}
	return "unix://" + endpoint
}

// setsBerth reports whether a file or a command line sets berth's endpoint. It tries both formats,
// because --config may name any file.
func setsBerth(text string) bool {
	return slices.ContainsFunc(slices.Concat(endpointKeys, endpointFlags), func(key string) bool {
		return IsBerth(yamlValue(text, key)) || IsBerth(flagValue(text, key))
	})
}

// filesWithBerth returns the files with berth's socket, including those that other files override.
// For k3s, which hides its command line, all files that contain the socket in any form count.
func (k Kubelet) filesWithBerth() []string {
	var paths []string
	for _, f := range slices.Concat(k.configs, k.flags) {
		if setsBerth(f.text) || k.K3s && strings.Contains(f.text, berthSocket) {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// CheckReleased returns an error if a file or the command line still sets berth's endpoint.
func (k Kubelet) CheckReleased() error {
	if named := k.filesWithBerth(); len(named) > 0 {
		return fmt.Errorf("the kubelet's endpoint is set to %s in %s: set it to that of the other CRI daemon, restart the kubelet, and try again", Berth, strings.Join(named, ", "))
	}
	if setsBerth(strings.Join(k.arguments, " ")) {
		return fmt.Errorf("the kubelet runs with %s on its command line: restart it with the endpoint of the other CRI daemon, and try again", Berth)
	}
	return nil
}

// CheckMovable returns an error if the kubelet cannot be switched to berth.
func (k Kubelet) CheckMovable() error {
	if k.Unit == "" {
		return errors.New("no kubelet.service, k3s.service or k3s-agent.service found: the kubelet cannot be restarted. Set its endpoint by hand (docs/migration.md)")
	}
	now, images := k.Endpoint(), k.setting(1)
	if k.K3s && now == "" {
		return errors.New("k3s runs a containerd of its own, which exits when k3s gets another endpoint: its pods cannot be kept. Drain the node, install berth as a package, and follow docs/install.md#k3s")
	}
	inUnit := func(f file) bool { return flagValue(f.text, endpointFlags[0]) != "" }
	if k.K3s && (len(flagsOf(k.arguments, endpointFlags[0])) > 0 || slices.ContainsFunc(k.flags, inUnit)) {
		return errors.New("k3s has --container-runtime-endpoint on its command line: write it into " + k3sConfig + " instead")
	}
	plain := func(endpoint string) string {
		return strings.Replace(AsURL(endpoint), "unix:///var/run/", "unix:///run/", 1)
	}
	// New pods would lose the images of an image service that is not the runtime's.
	if images != "" && !IsBerth(images) && !IsBerth(now) && plain(images) != plain(now) {
		return fmt.Errorf("the kubelet pulls images by %s, which is not its runtime: remove that endpoint, or move the kubelet by hand (docs/migration.md)", images)
	}
	return nil
}

// header is the first line of a drop-in.
const header = "# Written by berth-installer: sets the kubelet's endpoint to berth. Without this file the previous endpoint applies.\n"

// DropInText returns the text of the drop-in. unit is the output of "systemctl cat" for the
// kubelet.
func (k Kubelet) DropInText(unit string) (string, error) {
	names := endpointFlags[:1]
	if k.setting(1) != "" {
		names = endpointFlags
	}
	if k.K3s {
		text := header
		for _, name := range names {
			text += name + ": " + Berth + "\n"
		}
		return text, nil
	}
	command := execStart(unit, k.DropIn())
	if command == "" {
		return "", fmt.Errorf("%s.service has no ExecStart: set the kubelet's endpoint to %s by hand (docs/migration.md)", k.Unit, Berth)
	}
	for _, name := range names {
		command += " --" + name + "=" + Berth // the last one wins
	}
	return header + "[Service]\nExecStart=\nExecStart=" + command + "\n", nil
}

// execStart returns the command of a unit, ignoring one of its files.
func execStart(unit, without string) string {
	command := ""
	for section := range strings.SplitSeq("\n"+unit, "\n# /") {
		if strings.HasPrefix("/"+section, without+"\n") {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(section, "\\\n", " ")) {
			if key, value, found := strings.Cut(line, "="); found && strings.TrimSpace(key) == "ExecStart" {
				command = strings.TrimSpace(value)
			}
		}
	}
	return command
}

// yamlValue returns the value of a key at the top level; text may be JSON.
func yamlValue(text, key string) string {
	var all map[string]any
	if err := yaml.Unmarshal([]byte(text), &all); err != nil {
		return "" // a file with flags, or one that the kubelet refuses
	}
	v, _ := all[key].(string)
	return v
}

// EndpointIn returns the runtime endpoint in a file of configuration or of flags.
func EndpointIn(text string) string {
	return cmp.Or(yamlValue(text, endpointKeys[0]), flagValue(text, endpointFlags[0]))
}

// flagValue returns the last value of a flag outside comments.
func flagValue(text, name string) string {
	flag := regexp.MustCompile(`(?m)^[ \t]*(?:[^#; \t\n][^\n]*?)?--` + regexp.QuoteMeta(name) + `[= ]["']?([^\s"'\\]+)`)
	m := flag.FindAllStringSubmatch(text, -1)
	if m == nil {
		return ""
	}
	return m[len(m)-1][1]
}

// flagsOf returns the values of --name=value and --name value, in order.
func flagsOf(arguments []string, name string) []string {
	var values []string
	for n, a := range arguments {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			values = append(values, v)
		} else if a == "--"+name && n+1 < len(arguments) {
			values = append(values, arguments[n+1])
		}
	}
	return values
}

// HealthAddress returns the address of the kubelet's health endpoint; empty if it is disabled.
func (k Kubelet) HealthAddress() string {
	c := struct {
		Address string `json:"healthzBindAddress"`
		Port    int    `json:"healthzPort"`
	}{Port: 10248}
	for _, f := range k.configs {
		last := c
		if yaml.Unmarshal([]byte(f.text), &c) != nil {
			c = last // the kubelet does not start with it either
		}
	}
	for _, v := range flagsOf(k.arguments, "healthz-bind-address") {
		c.Address = v
	}
	for _, v := range flagsOf(k.arguments, "healthz-port") {
		if n, err := strconv.Atoi(v); err == nil {
			c.Port = n
		}
	}
	if c.Port == 0 {
		return ""
	}
	switch c.Address {
	case "", "0.0.0.0":
		c.Address = "127.0.0.1"
	case "::":
		c.Address = "::1"
	}
	return net.JoinHostPort(c.Address, strconv.Itoa(c.Port))
}
