package installer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/log"
)

// Where things are on the node.
const (
	home       = "/opt/berth"
	current    = home + "/current"
	program    = current + "/bin/berth"
	unitFile   = "/etc/systemd/system/berth.service"
	configFile = "/etc/berth/config.toml"
	dropIns    = "/etc/berth/conf.d"
	extraFile  = dropIns + "/90-installer.toml"
	socket     = "unix:///run/berth/berth.sock"
)

// Names of steps. runtimeStep is followed by the handler.
const (
	programsStep = "programs"
	configStep   = "config"
	unitStep     = "unit"
	startStep    = "start"
	kubeletStep  = "kubelet"
	runtimeStep  = "runtime-"
)

// steps are those of what is wanted, in their order.
func (i *Installer) steps(ctx context.Context, w Wanted, j *journal) ([]step, error) {
	beside, err := i.survey(ctx, w, j)
	if err != nil {
		return nil, err
	}
	left := map[string]bool{}
	for _, r := range w.Runtimes {
		if j.entry(runtimeStep+r.Handler) != nil {
			left[r.file()] = true
		}
	}
	config := &configuration{i: i, beside: beside, left: left, extra: w.Config}
	unit := &unit{i: i}
	steps := []step{
		&programs{i: i, version: w.Version}, config, unit,
		&start{i: i, version: w.Version, config: config.input()},
	}
	if w.Kubelet {
		steps = append(steps, &kubeletMove{i: i})
	}
	for _, r := range w.Runtimes {
		steps = append(steps, &broughtRuntime{i: i, r: r})
	}
	return steps, nil
}

// stepOf is the step of a name, as far as undo needs it.
func (i *Installer) stepOf(name string) (step, error) {
	switch name {
	case programsStep:
		return &programs{i: i}, nil
	case configStep:
		return &configuration{i: i}, nil
	case unitStep:
		return &unit{i: i}, nil
	case startStep:
		return &start{i: i}, nil
	case kubeletStep:
		return &kubeletMove{i: i}, nil
	}
	if handler, ok := strings.CutPrefix(name, runtimeStep); ok {
		return &broughtRuntime{i: i, r: Runtime{Handler: handler}}, nil
	}
	return nil, fmt.Errorf("the journal has a step %q: use the installer that wrote it", name)
}

// Beside is the daemon that berth is put beside.
type Beside struct {
	Endpoint string   `json:"endpoint"`
	Handlers []string `json:"handlers"`
	// CgroupDriver is the daemon's, which the kubelet has as well; empty is not known.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
}

// survey asks the other daemon what it has. Once the kubelet uses berth, the journal
// knows which daemon that is.
func (i *Installer) survey(ctx context.Context, w Wanted, j *journal) (Beside, error) {
	b := Beside{Endpoint: w.Endpoint}
	var saved savedConfiguration
	if e := j.entry(configStep); e != nil {
		if err := json.Unmarshal(e.Saved, &saved); err != nil {
			return b, err
		}
		if b.Endpoint == "" {
			b.Endpoint = saved.Beside.Endpoint
		}
	}
	if b.Endpoint == "" {
		k, err := i.findKubelet()
		if err != nil {
			return b, err
		}
		b.Endpoint = k.endpoint()
		if k.k3s && b.Endpoint == "" {
			_, err := k.moved(socket)
			return b, err // says why
		}
	}
	b.Endpoint = asURL(b.Endpoint)
	if isBerth(b.Endpoint) {
		return b, errors.New("the kubelet uses berth already, and not by this installer: nothing to put it beside")
	}
	err := eventually(ctx, i.patience, func() error {
		said, err := i.Backend.Ask(ctx, b.Endpoint)
		if err == nil {
			said.Endpoint = b.Endpoint
			b = said
		}
		return err
	})
	if err != nil && saved.Beside.Endpoint == b.Endpoint {
		// It may have been stopped for good, at the end of a migration.
		log.G(ctx).WithError(err).WithField("endpoint", b.Endpoint).Warn("Failed to ask the other CRI daemon; keeping its handlers as they were")
		return saved.Beside, nil
	}
	if err != nil {
		return b, fmt.Errorf("ask the CRI daemon at %s for its handlers: %w", b.Endpoint, err)
	}
	return b, nil
}

// name is the handler that leads to the daemon's default.
func (b Beside) name() string {
	if strings.Contains(b.Endpoint, "crio") {
		return "crio"
	}
	return "containerd"
}

// programs are copied to a directory of their version.
type programs struct {
	i       *Installer
	version string
}

func (*programs) name() string    { return programsStep }
func (p *programs) input() string { return p.version }
func (*programs) alone() bool     { return false }

func (p *programs) prepare(_ context.Context, saved []byte) ([]byte, error) {
	if saved == nil {
		for _, path := range append(unitOf("berth"), home, configFile) {
			if _, err := os.Lstat(p.i.path(path)); err == nil {
				return nil, fmt.Errorf("%s exists, and is not this installer's: remove the package, or keep it and move the kubelet by hand (docs/migration.md)", path)
			}
		}
	}
	return []byte("{}"), nil
}

func (p *programs) do(ctx context.Context, _ []byte) error {
	if err := os.MkdirAll(p.i.path(home), 0o755); err != nil {
		return err
	}
	if err := p.i.bring(p.i.Payload, "", filepath.Join(home, p.version), nil, func() { p.i.at("installer.programs.half") }); err != nil {
		return err
	}
	self, err := os.ReadFile(p.i.Self)
	if err != nil {
		return err
	}
	if err := p.i.put(filepath.Join(home, p.version, "bin", filepath.Base(rescueProgram)), self, 0o755); err != nil {
		return err
	}
	return p.i.relabel(ctx, home)
}

// relabel gives files the labels that a node with SELinux has for their place. What a pod
// copies has those of the pod, and systemd does not start such programs.
func (i *Installer) relabel(ctx context.Context, path string) error {
	if !i.existsAny([]string{"/sys/fs/selinux/enforce"}) || !i.existsAny([]string{"/usr/sbin/restorecon", "/sbin/restorecon"}) {
		return nil
	}
	_, err := i.Host.Run(ctx, "restorecon", "-R", path)
	return err
}

func (p *programs) undo(context.Context, []byte) error { return os.RemoveAll(p.i.path(home)) }

// configuration has every handler of the other daemon, by the same name, lead to it.
type configuration struct {
	i      *Installer
	beside Beside
	left   map[string]bool
	extra  string
}

type savedConfiguration struct {
	Beside Beside     `json:"beside"`
	Files  []original `json:"files"`
}

func (*configuration) name() string { return configStep }
func (*configuration) alone() bool  { return false }

func (c *configuration) input() string {
	h := sha256.New()
	for path := range c.files().sorted() {
		fmt.Fprintf(h, "%s\n%s\n", path, c.files().content[path])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (c *configuration) files() fileSet {
	f := fileSet{content: configTexts(c.beside, c.extra), left: c.left}
	if c.i != nil {
		f.half = func() { c.i.at("installer.config.half") }
	}
	return f
}

// configTexts are the files of a berth whose pods are all the other daemon's.
func configTexts(b Beside, extra string) map[string][]byte {
	const by = "# Written by berth-installer.\n"
	main := fmt.Appendf(nil, by+"version = 1\ndefault_runtime = %q\n", b.name())
	if b.CgroupDriver != "" {
		main = fmt.Appendf(main, "\n[engine]\ncgroup_driver = %q\n", b.CgroupDriver)
	}
	texts := map[string][]byte{configFile: main}
	for _, name := range append(slices.Clone(b.Handlers), b.name()) {
		there := name
		if name == b.name() {
			there = ""
		}
		texts[handlerFile(name)] = fmt.Appendf(nil, by+"[runtimes.%q]\nendpoint = %q\nremote_handler = %q\n", name, b.Endpoint, there)
	}
	if extra != "" {
		texts[extraFile] = []byte(by + strings.TrimRight(extra, "\n") + "\n")
	}
	return texts
}

func handlerFile(handler string) string { return filepath.Join(dropIns, "50-"+handler+".toml") }

func (c *configuration) prepare(_ context.Context, before []byte) ([]byte, error) {
	var saved savedConfiguration
	if before != nil {
		if err := json.Unmarshal(before, &saved); err != nil {
			return nil, err
		}
	}
	saved.Beside = c.beside
	var err error
	if saved.Files, err = c.files().prepare(c.i, saved.Files); err != nil {
		return nil, err
	}
	return json.Marshal(saved)
}

func (c *configuration) do(_ context.Context, text []byte) error {
	var saved savedConfiguration
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	return c.files().do(c.i, saved.Files)
}

func (c *configuration) undo(_ context.Context, text []byte) error {
	var saved savedConfiguration
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	return c.i.undoFiles(saved.Files)
}

// unit is the service.
type unit struct{ i *Installer }

func (*unit) name() string { return unitStep }
func (*unit) alone() bool  { return false }

func (u *unit) input() string {
	text, err := u.text()
	return digest(fmt.Appendf(text, "%v", err))
}

// text is the unit as it is shipped, with the programs in their place.
func (u *unit) text() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(u.i.Payload, "berth.service"))
	return bytes.ReplaceAll(text, []byte("/usr/bin/"), []byte(current+"/bin/")), err
}

func (u *unit) prepare(_ context.Context, before []byte) ([]byte, error) {
	var saved []original
	if before != nil {
		if err := json.Unmarshal(before, &saved); err != nil {
			return nil, err
		}
	}
	text, err := u.text()
	if err != nil {
		return nil, err
	}
	if saved, err = (fileSet{content: map[string][]byte{unitFile: text}}).prepare(u.i, saved); err != nil {
		return nil, err
	}
	return json.Marshal(saved)
}

func (u *unit) do(ctx context.Context, before []byte) error {
	var saved []original
	if err := json.Unmarshal(before, &saved); err != nil {
		return err
	}
	text, err := u.text()
	if err != nil {
		return err
	}
	if err := u.i.replace(saved[0], text); err != nil {
		return err
	}
	u.i.at("installer.unit.half")
	_, err = u.i.Host.Run(ctx, "systemctl", "daemon-reload")
	return err
}

func (u *unit) undo(ctx context.Context, text []byte) error {
	var saved []original
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if err := u.i.undoFiles(saved); err != nil {
		return err
	}
	_, err := u.i.Host.Run(ctx, "systemctl", "daemon-reload")
	return err
}

// start has the daemon run, and looks whether all that it serves can run pods.
type start struct {
	i               *Installer
	version, config string
}

// savedStart is what undo needs, and what the way back from a version needs.
type savedStart struct {
	// Kept are directories that were there before.
	Kept []string `json:"kept"`
	// Good is the version that was last green, Left says that another was begun since.
	Good string `json:"good,omitempty"`
	Left bool   `json:"left,omitempty"`
}

// daemonDirs are what a daemon makes, and what nobody needs without one.
var daemonDirs = []string{"/var/lib/berth", "/run/berth"}

// labelFiles are what it says of its handlers to Node Feature Discovery, of which one does not
// expire.
var labelFiles = []string{
	"/etc/kubernetes/node-feature-discovery/features.d/berth",
	"/etc/kubernetes/node-feature-discovery/features.d/berth-present",
}

func (*start) name() string    { return startStep }
func (s *start) input() string { return s.version + " " + s.config }
func (*start) alone() bool     { return false }

func (s *start) prepare(_ context.Context, before []byte) ([]byte, error) {
	saved := savedStart{}
	if before != nil {
		if err := json.Unmarshal(before, &saved); err != nil {
			return nil, err
		}
		saved.Left = saved.Left || saved.Good != s.version
		return json.Marshal(saved)
	}
	for _, dir := range daemonDirs {
		if _, err := os.Lstat(s.i.path(dir)); err == nil {
			saved.Kept = append(saved.Kept, dir)
		}
	}
	return json.Marshal(saved)
}

// settled implements settling.
func (s *start) settled(text []byte) ([]byte, error) {
	var saved savedStart
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, err
	}
	saved.Good, saved.Left = s.version, false
	return json.Marshal(saved)
}

func (s *start) do(ctx context.Context, text []byte) error {
	var saved savedStart
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	binary := filepath.Join(home, s.version, "bin/berth")
	if _, err := s.i.Host.Run(ctx, binary, "check"); err != nil && exitStatus(err) != degraded {
		return fmt.Errorf("berth refuses the configuration: %w", err)
	}
	link := s.i.path(current)
	before, err := os.Readlink(link)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if before != s.version {
		if err := relink(link, s.version); err != nil {
			return err
		}
	}
	s.i.at("installer.start.half")
	if err := s.run(ctx, saved); err != nil {
		return errors.Join(err, s.back(ctx, saved))
	}
	s.i.at("installer.start.run")
	if err := s.i.green(ctx, false); err != nil {
		return errors.Join(err, s.back(ctx, saved))
	}
	return nil
}

// run has the daemon be of that version. Whether the one that runs is cannot be told from
// the link, which an interrupted run may have changed before it restarted anything.
func (s *start) run(ctx context.Context, saved savedStart) error {
	if _, err := s.i.Host.Run(ctx, "systemctl", "enable", "berth.service"); err != nil {
		return err
	}
	if _, err := s.i.Host.Run(ctx, "systemctl", "is-active", "--quiet", "berth.service"); err == nil && saved.Good == s.version && !saved.Left {
		return s.i.reload(ctx)
	}
	// Pods go on meanwhile: they are not the daemon's children.
	if _, err := s.i.Host.Run(ctx, "systemctl", "restart", "berth.service"); err != nil {
		return fmt.Errorf("berth does not start: %w; see \"journalctl -u berth\"", err)
	}
	return nil
}

// back returns to the version that was last green, if that is another. A run that is
// interrupted leaves it to the next.
func (s *start) back(ctx context.Context, saved savedStart) error {
	if saved.Good == "" || saved.Good == s.version || ctx.Err() != nil {
		return nil
	}
	if err := relink(s.i.path(current), saved.Good); err != nil {
		return err
	}
	if _, err := s.i.Host.Run(ctx, "systemctl", "restart", "berth.service"); err != nil {
		return fmt.Errorf("go back to version %s: %w", saved.Good, err)
	}
	return nil
}

// mayUndo implements guarded: without berth, a kubelet that uses it has no runtime. The
// journal does not know of one that was moved by hand, or by kubeadm.
func (s *start) mayUndo(context.Context, []byte) error {
	k, err := s.i.lookForKubelet()
	if err != nil {
		return err
	}
	if err := k.left(k.named); err != nil {
		return err
	}
	return s.i.noPods()
}

func (s *start) undo(ctx context.Context, text []byte) error {
	var saved savedStart
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if _, err := os.Lstat(s.i.path(unitFile)); err == nil {
		if _, err := s.i.Host.Run(ctx, "systemctl", "disable", "--now", "berth.service"); err != nil {
			return err
		}
	}
	for _, file := range labelFiles {
		if err := os.Remove(s.i.path(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range daemonDirs {
		if !slices.Contains(saved.Kept, dir) {
			if err := s.i.removeState(ctx, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeState removes a directory of the daemon's. What is mounted there is of a pod that
// nobody knows any more, and is no longer used.
func (i *Installer) removeState(ctx context.Context, dir string) error {
	text, err := os.ReadFile(i.path("/proc/self/mountinfo"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], i.path(dir)+"/") {
			log.G(ctx).WithField("path", f[4]).Warn("Directory is left: something is mounted in it")
			return nil
		}
	}
	return os.RemoveAll(i.path(dir))
}

// finding is one of "berth doctor".
type finding struct {
	Check, Level, Text, Next string
}

// green asks the doctor. Until the kubelet is moved, what it says of the kubelet is known.
func (i *Installer) green(ctx context.Context, moved bool) error {
	out, runErr := i.Host.Run(ctx, program, "doctor", "-o", "json")
	var said struct{ Findings []finding }
	if err := json.Unmarshal(out, &said); err != nil || len(said.Findings) == 0 {
		return fmt.Errorf("run the doctor: %w", errors.Join(runErr, err))
	}
	if err := failures(said.Findings, moved); err != nil {
		return err
	}
	return i.ready(ctx)
}

// failures are findings that keep the kubelet from being moved.
func failures(all []finding, moved bool) error {
	var wrong []error
	for _, f := range all {
		if f.Level != "fail" || !moved && (f.Check == "kubelet" || f.Check == "kubeadm") {
			continue
		}
		wrong = append(wrong, fmt.Errorf("doctor: %s: %s; %s", f.Check, f.Text, f.Next))
	}
	return errors.Join(wrong...)
}

// handler is one of "berth handlers".
type handler struct {
	Name, State, Reason string
	Pods                int
	IsDefault           bool
}

func (i *Installer) handlers(ctx context.Context) ([]handler, error) {
	out, err := i.Host.Run(ctx, program, "handlers", "-o", "json")
	var said struct{ Handlers []handler }
	if jsonErr := json.Unmarshal(out, &said); jsonErr != nil {
		return nil, fmt.Errorf("list handlers: %w", errors.Join(err, jsonErr))
	}
	return said.Handlers, nil
}

// patience is how long that may take.
const patience = 30 * time.Second

// ready waits until the default handler can run pods: berth asks a daemon that it has
// just heard of. Other handlers may lack their binary in the other daemon as well.
func (i *Installer) ready(ctx context.Context) error {
	return eventually(ctx, i.patience, func() error {
		all, err := i.handlers(ctx)
		if err != nil {
			return err
		}
		return defaultReady(all)
	})
}

func defaultReady(all []handler) error {
	for _, h := range all {
		if h.IsDefault && h.State == "STATE_READY" {
			return nil
		}
		if h.IsDefault {
			return fmt.Errorf("handler %s is not ready: %s", h.Name, h.Reason)
		}
	}
	return errors.New("berth has no default handler")
}

// ErrFinal is an error of a Cluster's that does not pass by itself.
var ErrFinal = errors.New("asking again does not help")

// eventually repeats a question until the answer is good, or patience ends.
func eventually(ctx context.Context, patience time.Duration, ask func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil || errors.Is(err, ErrFinal) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
