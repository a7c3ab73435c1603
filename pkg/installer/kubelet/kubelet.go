// Package kubelet finds the kubelet of a node, or k3s, and says what its files must say so
// that it uses another CRI daemon, and what so that it goes back.
package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Where a kubelet's settings are. Files of flags win over files of configuration.
const (
	Config         = "/var/lib/kubelet/config.yaml"
	InstanceConfig = "/var/lib/kubelet/instance-config.yaml"
	k3sConfig      = "/etc/rancher/k3s/config.yaml"
)

var flagFiles = []string{
	"/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet",
	"/etc/systemd/system/kubelet.service", "/etc/systemd/system/kubelet.service.d/*.conf",
}

// packagedUnits belong to packages, whose next version would replace what is written there.
var packagedUnits = []string{
	"/usr/lib/systemd/system/kubelet.service", "/usr/lib/systemd/system/kubelet.service.d/*.conf",
	"/lib/systemd/system/kubelet.service", "/lib/systemd/system/kubelet.service.d/*.conf",
}

// k3sUnits are those of servers and agents.
var k3sUnits = []string{"k3s", "k3s-agent"}

// Kubelet is one as it is found.
type Kubelet struct {
	// configs are the paths of its configuration, in the order in which it reads them: the first
	// is that of --config, and a later one wins.
	configs []string
	// texts are the files that exist, by path: those, and files with flags.
	texts map[string]string
	// packaged are files of packages with an endpoint.
	packaged []string
	// arguments are its command line, if it runs.
	arguments []string
	// Named are files with berth's socket, also where another one wins over them. Runs says
	// that the command line has it.
	Named []string
	Runs  bool
	// Unit is the service to restart, and K3s says that the kubelet is part of k3s.
	Unit string
	K3s  bool
}

// Change is one that a file gets.
type Change struct {
	Path, Text string
}

// Berth is the endpoint of berth.
const (
	Berth       = "unix://" + berthSocket
	berthSocket = "/run/berth/berth.sock"
)

// defaultEndpoint is what a kubelet uses that is told nothing.
const defaultEndpoint = "unix:///run/containerd/containerd.sock"

var (
	endpointKeys  = []string{"containerRuntimeEndpoint", "imageServiceEndpoint"}
	endpointFlags = []string{"container-runtime-endpoint", "image-service-endpoint"}
)

// Endpoint is the one that is in force, as far as files and flags say.
func (k Kubelet) Endpoint() string {
	now := ""
	set := func(v string) {
		if v != "" {
			now = v
		}
	}
	flags := flagsOf(k.arguments, endpointFlags[0])
	if k.K3s {
		if len(k.Named) > 0 {
			return Berth // what else says so wins over the file, or is hidden on the command line
		}
		set(yamlValue(k.texts[k3sConfig], endpointFlags[0]))
		set(slices.Concat(flags, []string{""})[0])
		return now
	}
	for _, path := range k.configs {
		set(yamlValue(k.texts[path], endpointKeys[0]))
	}
	for _, path := range slices.Sorted(maps.Keys(k.texts)) {
		if !slices.Contains(k.configs, path) {
			set(flagValue(k.texts[path], endpointFlags[0]))
		}
	}
	for _, v := range flags {
		set(v)
	}
	if now == "" {
		return defaultEndpoint
	}
	return now
}

// IsBerth says whether an endpoint is berth's, with links and without.
func IsBerth(endpoint string) bool { return strings.HasSuffix(endpoint, berthSocket) }

// AsURL is an endpoint with its scheme.
func AsURL(endpoint string) string {
	if strings.Contains(endpoint, "://") {
		return endpoint
	}
	return "unix://" + endpoint
}

// NamesBerth says whether a file, or a command line, leads the kubelet to berth. A name does
// not tell configuration from flags: --config may be any.
func NamesBerth(text string) bool {
	for _, key := range slices.Concat(endpointKeys, endpointFlags) {
		if IsBerth(yamlValue(text, key)) || IsBerth(flagValue(text, key)) {
			return true
		}
	}
	return false
}

// Left returns what still leads the kubelet to berth, and what to do about that.
func (k Kubelet) Left(files []string) error {
	if len(files) > 0 {
		return fmt.Errorf("the kubelet is led to %s by %s: set the endpoint of the other CRI daemon there, restart the kubelet, and try again", Berth, strings.Join(files, ", "))
	}
	if k.Runs {
		return fmt.Errorf("the kubelet runs with %s on its command line: restart it with the endpoint of the other CRI daemon, and try again", Berth)
	}
	return nil
}

// Moved returns what files must say so that the kubelet uses an endpoint. Only what
// decides is changed, and nothing else of a file.
func (k Kubelet) Moved(to string) ([]Change, error) {
	if k.K3s {
		return k.k3sMoved(to)
	}
	if len(k.packaged) > 0 {
		return nil, fmt.Errorf("the kubelet's endpoint is set in %s, which belongs to a package: move the flag to /etc/default/kubelet or to %s", strings.Join(k.packaged, ", "), k.configs[0])
	}
	config := k.configs[0]
	if _, found := k.texts[config]; !found {
		return nil, fmt.Errorf("the kubelet's configuration %s does not exist: cannot set containerRuntimeEndpoint", config)
	}
	if err := k.ownImages(); err != nil {
		return nil, err
	}
	var changes []Change
	inFlags := false
	for _, path := range slices.Sorted(maps.Keys(k.texts)) {
		now := k.texts[path]
		var then string
		if slices.Contains(k.configs, path) {
			then = setYAML(now, endpointKeys, to)
			if path == config && yamlValue(then, endpointKeys[0]) == "" {
				then = addYAML(then, endpointKeys[0], to)
			}
			if err := leadsOnly(path, then, path == config, to); err != nil {
				return nil, err
			}
		} else {
			then = setFlags(now, endpointFlags, to)
			inFlags = inFlags || flagValue(now, endpointFlags[0]) != ""
		}
		if then != now {
			changes = append(changes, Change{path, then})
		}
	}
	if flags := flagsOf(k.arguments, endpointFlags[0]); len(flags) > 0 && !inFlags {
		return nil, fmt.Errorf("the kubelet runs with --container-runtime-endpoint=%s, which is in none of %s, %s: move the flag to one of them",
			flags[len(flags)-1], config, strings.Join(flagFiles, ", "))
	}
	return changes, nil
}

// ownImages refuses an image service that is not the runtime's: its images would be lost to new
// pods. Half a move is finished.
func (k Kubelet) ownImages() error {
	if IsBerth(k.Endpoint()) {
		return nil
	}
	plain := func(endpoint string) string {
		return strings.Replace(AsURL(endpoint), "unix:///var/run/", "unix:///run/", 1)
	}
	for _, path := range slices.Sorted(maps.Keys(k.texts)) {
		its := flagValue(k.texts[path], endpointFlags[1])
		if slices.Contains(k.configs, path) {
			its = yamlValue(k.texts[path], endpointKeys[1])
		}
		if its != "" && !IsBerth(its) && plain(its) != plain(k.Endpoint()) {
			return fmt.Errorf("%s has the kubelet pull images by %s, which is not its runtime: remove that, or move the kubelet by hand (docs/migration.md)", path, its)
		}
	}
	return nil
}

// leadsOnly says whether a configuration, as it would be written, has no endpoint but the
// wanted one. Only lines are edited: in JSON, and in rarer forms of YAML, there are none.
func leadsOnly(path, text string, needed bool, to string) error {
	for n, key := range endpointKeys {
		v := yamlValue(text, key)
		if v == to || v == "" && (n > 0 || !needed) {
			continue
		}
		return fmt.Errorf("%s is JSON, or YAML that is not understood: set %s to %s there by hand, or make it plain YAML", path, key, to)
	}
	return nil
}

func (k Kubelet) k3sMoved(to string) ([]Change, error) {
	text := k.texts[k3sConfig]
	if yamlValue(text, endpointFlags[0]) == "" {
		return nil, errors.New("k3s runs a containerd of its own, which ends when k3s is given another endpoint: its pods cannot be kept. Drain the node, install berth as a package, and follow docs/install.md#k3s")
	}
	if len(flagsOf(k.arguments, endpointFlags[0])) > 0 {
		return nil, errors.New("k3s has --container-runtime-endpoint on its command line: write it into " + k3sConfig + " instead")
	}
	return []Change{{k3sConfig, setYAML(text, endpointFlags, to)}}, nil
}

// yamlLine matches a key at the top level, with what is around its value.
func yamlLine(key string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^("?` + regexp.QuoteMeta(key) + `"?[ \t]*:[ \t]*)("[^"\n]*"|'[^'\n]*'|[^\s#]+)`)
}

// yamlValue is the value of a key at the top level, also in JSON.
func yamlValue(text, key string) string {
	var all map[string]any
	if err := yaml.Unmarshal([]byte(text), &all); err == nil {
		v, _ := all[key].(string)
		return v
	}
	// A file with flags, or one that the kubelet refuses.
	m := yamlLine(key).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return strings.Trim(m[2], `"'`)
}

// setYAML gives those of the keys that have a value another one.
func setYAML(text string, keys []string, to string) string {
	for _, key := range keys {
		if yamlValue(text, key) != "" {
			text = yamlLine(key).ReplaceAllString(text, "${1}"+to)
		}
	}
	return text
}

// addYAML puts a key behind all others, or in the place of an empty one.
func addYAML(text, key, to string) string {
	empty := regexp.MustCompile(`(?m)^"?` + regexp.QuoteMeta(key) + `"?[ \t]*:[ \t]*(""|'')?[ \t]*$`)
	line := key + ": " + to
	if empty.MatchString(text) {
		return empty.ReplaceAllString(text, line)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + line + "\n"
}

// flagText matches a flag with its value, where it is not in a comment.
func flagText(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^([ \t]*(?:[^#; \t\n][^\n]*?)?--` + regexp.QuoteMeta(name) + `[= ])(["']?)([^\s"'\\]+)`)
}

func flagValue(text, name string) string {
	m := flagText(name).FindAllStringSubmatch(text, -1)
	if m == nil {
		return ""
	}
	return m[len(m)-1][3]
}

func setFlags(text string, names []string, to string) string {
	for _, name := range names {
		text = flagText(name).ReplaceAllString(text, "${1}${2}"+to)
	}
	return text
}

// Reverted is what a file gets when the kubelet goes back. One that somebody has changed
// meanwhile keeps that, and only the endpoint is put back, if it is still the new one.
func Reverted(now, old, written, to string) string {
	if now == written {
		return old
	}
	for _, key := range slices.Concat(endpointKeys, endpointFlags) {
		was := yamlValue(old, key)
		switch {
		case yamlValue(now, key) != to:
		case was == "":
			now = regexp.MustCompile(`(?m)^"?`+regexp.QuoteMeta(key)+`"?[ \t]*:.*\n?`).ReplaceAllString(now, "")
		default:
			now = setYAML(now, []string{key}, was)
		}
	}
	for _, name := range endpointFlags {
		if was := flagValue(old, name); was != "" && flagValue(now, name) == to {
			now = setFlags(now, []string{name}, was)
		}
	}
	return now
}
