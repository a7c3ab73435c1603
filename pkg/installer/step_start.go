package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/installer/kubelet"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// start has the daemon run, and looks whether all that it serves can run pods.
type start struct {
	root            nodefs.Root
	host            Host
	at              hook
	daemon          daemon
	version, config string
	// configBack puts the configuration back that was last green, if there is another. again has
	// the journal say that a step is to be done anew.
	configBack func() (was bool, err error)
	again      func(step string)
	// wroteUnit says whether the installer has written a unit. Another is somebody's edit.
	wroteUnit func(text []byte) bool
	// moving says that a move of the kubelet is not finished, for which the rescue waits as well.
	moving bool
}

// savedStart is what undo needs, and what the way back from a version needs.
type savedStart struct {
	// Kept are directories that were there before.
	Kept []string `json:"kept"`
	// Good is the version that was last green, Unit its service, and Left says that another was
	// begun since.
	Good string `json:"good,omitempty"`
	Unit []byte `json:"unit,omitempty"`
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
		link, err := os.Readlink(s.root.Path(current))
		saved.Left = saved.Left || saved.Good != s.version || err != nil || link != s.version
		return json.Marshal(saved)
	}
	for _, dir := range daemonDirs {
		if _, err := os.Lstat(s.root.Path(dir)); err == nil {
			saved.Kept = append(saved.Kept, dir)
		}
	}
	return json.Marshal(saved)
}

// holds implements lasting.
func (s *start) holds(ctx context.Context, _ []byte) error {
	switch link, err := os.Readlink(s.root.Path(current)); {
	case err != nil:
		return err
	case link != s.version:
		return fmt.Errorf("%s leads to version %s", current, link)
	case !s.daemon.enabled(ctx):
		return errors.New("berth.service is disabled")
	case !s.daemon.active(ctx):
		return errors.New("berth does not run")
	}
	return nil
}

// settled implements settling.
func (s *start) settled(text []byte) ([]byte, error) {
	var saved savedStart
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, err
	}
	var err error
	if saved.Unit, err = os.ReadFile(s.root.Path(unitFile)); err != nil {
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
	err := s.change(ctx, saved)
	proved := err == nil
	if err != nil {
		back := s.back(ctx, saved)
		proved, err = back == nil, errors.Join(err, back)
	}
	if proved && !s.moving && ctx.Err() == nil && s.daemon.active(ctx) {
		err = errors.Join(err, s.rescue().disarm(ctx))
	}
	return err
}

func (s *start) rescue() rescue { return rescue{s.root, s.host} }

// used says whether the kubelet uses berth.
func (s *start) used() bool {
	k, err := kubelet.Find(s.root)
	return err != nil || kubelet.IsBerth(k.Endpoint()) || len(k.Named) > 0 || k.Runs
}

// change has the daemon be of that version, with the files that there are.
func (s *start) change(ctx context.Context, saved savedStart) error {
	binary := filepath.Join(home, s.version, "bin/berth")
	_, err := s.host.Run(ctx, binary, "check")
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s cannot be run: %w; is that filesystem mounted with noexec?", binary, err)
	}
	if err != nil && exitStatus(err) != degraded {
		return fmt.Errorf("berth refuses the configuration: %w", err)
	}
	link := s.root.Path(current)
	before, err := os.Readlink(link)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if before != s.version {
		if err := nodefs.Relink(link, s.version); err != nil {
			return err
		}
	}
	s.at("installer.start.half")
	if err := s.run(ctx, saved); err != nil {
		return err
	}
	s.at("installer.start.run")
	return s.daemon.green(ctx, false)
}

// run has the daemon be of that version. Whether the one that runs is cannot be told from
// the link, which an interrupted run may have changed before it restarted anything.
func (s *start) run(ctx context.Context, saved savedStart) error {
	if _, err := s.host.Run(ctx, "systemctl", "enable", "berth.service"); err != nil {
		return err
	}
	if s.daemon.active(ctx) && saved.Good == s.version && !saved.Left {
		return s.reread(ctx)
	}
	return s.restart(ctx)
}

// reread has the daemon that runs use its files.
func (s *start) reread(ctx context.Context) error {
	waits, err := s.daemon.reloaded(ctx)
	if err != nil || len(waits) == 0 {
		return err
	}
	log.G(ctx).WithField("settings", waits).Info("Restarting berth for settings that count from its start")
	return s.restart(ctx)
}

// restart restarts the daemon. Pods go on meanwhile: they are not its children.
func (s *start) restart(ctx context.Context) error {
	if _, err := s.host.Run(ctx, "systemctl", "restart", "berth.service"); err != nil {
		return fmt.Errorf("berth does not start: %w; see \"journalctl -u berth\"", err)
	}
	return nil
}

// backPatience is how long an interrupted run may take to leave the node with a daemon.
const backPatience = 2 * time.Minute

// back returns to the version and the configuration that were last green, if there are
// others. A run that is interrupted leaves it to the next, if the daemon runs meanwhile: for a
// kubelet that uses it there may be none.
func (s *start) back(ctx context.Context, saved savedStart) error {
	if saved.Good == "" {
		return nil
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), backPatience)
		defer cancel()
		if s.daemon.active(ctx) {
			return nil
		}
	}
	was, configErr := s.configBack()
	unitWas, unitErr := s.unitBack(ctx, saved)
	was, configErr = was || unitWas, errors.Join(configErr, unitErr)
	link, err := os.Readlink(s.root.Path(current))
	switch {
	case err != nil || link != saved.Good:
		if err = nodefs.Relink(s.root.Path(current), saved.Good); err == nil {
			err = s.restart(ctx)
		}
		was = true
	case was && !unitWas && s.daemon.active(ctx):
		err = s.reread(ctx)
	case was:
		err = s.restart(ctx)
	}
	if err = errors.Join(configErr, err); err != nil {
		return fmt.Errorf("go back to version %s and its configuration: %w", saved.Good, err)
	}
	if was {
		log.G(ctx).WithField("version", saved.Good).Warn("Went back to what berth was last green with")
	}
	return nil
}

// guard has a timer wait to go back, before files are changed that the next start of a berth
// reads that a kubelet uses.
func (s *start) guard(ctx context.Context, text []byte) error {
	var saved savedStart
	if err := json.Unmarshal(text, &saved); err != nil || saved.Good == "" || !s.used() {
		return err
	}
	return s.rescue().arm(ctx)
}

// save has an interrupted run leave the node with a daemon that is well, if a kubelet uses it.
func (s *start) save(ctx context.Context, text []byte) error {
	var saved savedStart
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if saved.Good == "" || !s.used() || s.daemon.active(ctx) && s.daemon.green(ctx, false) == nil {
		return nil
	}
	if err := s.back(ctx, saved); err != nil {
		return err
	}
	if !s.daemon.active(ctx) {
		return s.restart(ctx)
	}
	return nil
}

// unitBack writes the unit of the version that was last green, if there is that of another.
func (s *start) unitBack(ctx context.Context, saved savedStart) (was bool, err error) {
	now, err := os.ReadFile(s.root.Path(unitFile))
	if len(saved.Unit) == 0 || err == nil && (bytes.Equal(now, saved.Unit) || !s.wroteUnit(now)) {
		return false, nil
	}
	s.again(unitStep)
	if err := s.root.Put(unitFile, saved.Unit, 0o644); err != nil {
		return true, err
	}
	_, err = s.host.Run(ctx, "systemctl", "daemon-reload")
	return true, err
}

// mayUndo implements guarded: without berth, a kubelet that uses it has no runtime. The
// journal does not know of one that was moved by hand, or by kubeadm.
func (s *start) mayUndo(context.Context, []byte) error {
	k, err := kubelet.Find(s.root)
	if err != nil {
		return err
	}
	if err := k.Left(k.Named); err != nil {
		return err
	}
	return noPods(s.root)
}

func (s *start) undo(ctx context.Context, text []byte) error {
	var saved savedStart
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if err := errors.Join(s.rescue().disarm(ctx), s.stop(ctx)); err != nil {
		return err
	}
	for _, file := range labelFiles {
		if err := os.Remove(s.root.Path(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range daemonDirs {
		if !slices.Contains(saved.Kept, dir) {
			if err := s.removeState(ctx, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// stop stops the daemon for good, also where somebody has removed its unit.
func (s *start) stop(ctx context.Context) error {
	if s.root.ExistsAny(unitFile) {
		_, err := s.host.Run(ctx, "systemctl", "disable", "--now", "berth.service")
		return err
	}
	if s.daemon.active(ctx) {
		if _, err := s.host.Run(ctx, "systemctl", "stop", "berth.service"); err != nil {
			return err
		}
	}
	link := s.root.Path(wants)
	if err := atomicfile.Remove(link); err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	os.Remove(filepath.Dir(link)) // as systemd does with an empty one
	return nil
}

// removeState removes a directory of the daemon. A directory with mounts of pods is left, because
// they may be in use. The empty network namespace that gVisor keeps after its last pod is
// unmounted.
func (s *start) removeState(ctx context.Context, dir string) error {
	text, err := os.ReadFile(s.root.Path("/proc/self/mountinfo"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var spare []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[4], s.root.Path(dir)+"/") {
			continue
		}
		if filepath.Base(f[4]) != "null-netns" {
			log.G(ctx).WithField("path", f[4]).Warn("Directory is left: something is mounted in it")
			return nil
		}
		spare = append(spare, f[4])
	}
	for _, path := range spare {
		if _, err := s.host.Run(ctx, "umount", filepath.Join("/", strings.TrimPrefix(path, string(s.root)))); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.root.Path(dir))
}
