package retention

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// Settings are what an operator says of the node.
type Settings struct {
	// Directory has the checkpoints, each in a directory of its own.
	Directory string
	Bounds    Bounds
}

const (
	// interval is how often checkpoints are looked at that nobody told of: they grow older.
	interval = 10 * time.Minute
	// patience is how long somebody who asks for the state waits for the disk.
	patience = 2 * time.Second
)

// Keeper removes checkpoints that are over the bounds, and knows what there is. All methods may be
// called at any time from any goroutine.
type Keeper struct {
	waiting func() []string
	wake    chan struct{}
	// looking lets one look at the disk at a time. It is held before mu.
	looking chan struct{}
	scanner scanner // whoever has looking

	tally tally

	mu       sync.Mutex
	settings Settings
	state    State
	failed   error  // why not all was removed
	warned   string // what was logged of the directory, so that it is logged once
}

// State is what there is.
type State struct {
	// Directory is where checkpoints are kept. The others are about what is directly below it.
	Directory string
	// Count and Bytes are of whole checkpoints.
	Count int
	Bytes int64
	// Oldest is when the oldest was made; zero without one.
	Oldest time.Time
	// Damaged are directories that are no whole checkpoints. They are never removed.
	Damaged []Damaged
	// Exceeded says that more is kept than the bounds allow.
	Exceeded bool
	// Fault is why the directory cannot be looked at, or a checkpoint not removed; nil if all is
	// well.
	Fault error
}

// New looks after checkpoints when Run is called. waiting are the directories of those that pods are
// yet to go on from, though nobody has locked them.
func New(s Settings, waiting func() []string) *Keeper {
	return &Keeper{
		waiting: waiting, settings: s, wake: make(chan struct{}, 1), looking: make(chan struct{}, 1), tally: newTally(),
		state: State{Directory: s.Directory},
	}
}

// Configure puts other settings in force.
func (k *Keeper) Configure(s Settings) {
	k.mu.Lock()
	changed := k.settings != s
	k.settings = s
	k.mu.Unlock()
	if changed {
		k.again()
	}
}

// Waiting are the directories, wherever they are, of checkpoints that pods are yet to go on from.
func (k *Keeper) Waiting() []string { return k.waiting() }

// Written tells of a new checkpoint.
func (k *Keeper) Written(dir string) {
	if k.has(dir) {
		k.again()
	}
}

// Failed tells that a checkpoint was not written, and nothing is left of it but its directory. That
// goes, too, if the keeper's is around it and who made it has left.
func (k *Keeper) Failed(dir string) error {
	if k.has(dir) {
		return forsaken(filepath.Clean(dir))
	}
	return nil
}

// Discard removes what there is of a checkpoint whose writing was interrupted, unless it is whole,
// as soon as nobody uses its directory: a new one may be written into it already.
func (k *Keeper) Discard(ctx context.Context, dir string) error {
	release, err := await(ctx, dir, unix.LOCK_EX)
	if err != nil {
		return err
	}
	err = manifest.Discard(dir)
	release()
	if err != nil {
		return err
	}
	return k.Failed(dir)
}

// has says whether dir is directly below the directory.
func (k *Keeper) has(dir string) bool {
	return filepath.Dir(filepath.Clean(dir)) == filepath.Clean(k.now().Directory)
}

func (k *Keeper) now() Settings {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.settings
}

func (k *Keeper) again() {
	select {
	case k.wake <- struct{}{}:
	default: // it will be looked at anyway
	}
}

// Run removes what is over the bounds, at once and whenever it may have changed, until ctx ends. It
// begins with what an interrupted daemon left.
func (k *Keeper) Run(ctx context.Context) {
	if err := allForsaken(k.now().Directory); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to remove directories of interrupted checkpoints")
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		k.pass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-ticker.C:
		}
	}
}

// pass does it once.
func (k *Keeper) pass(ctx context.Context) {
	select {
	case k.looking <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-k.looking }()
	s := k.now()
	found, serr := k.scanner.scan(s.Directory)
	var err error
	if serr == nil {
		err = k.finish(ctx, s.Directory)
	}
	left, rerr := k.remove(ctx, found.Checkpoints, s.Bounds)
	found.Checkpoints = left
	k.mu.Lock()
	k.failed = errors.Join(err, rerr)
	k.mu.Unlock()
	k.note(s, found, serr)
	k.warn(ctx, errors.Join(err, serr, rerr))
}

func (*Keeper) finish(ctx context.Context, dir string) error {
	finished, err := Finish(dir)
	if finished > 0 {
		log.G(ctx).WithField("count", finished).Info("Interrupted removals of checkpoints finished")
	}
	return err
}

// remove removes what is over the bounds, and returns what is left. What cannot be removed may
// have others go in its place.
func (k *Keeper) remove(ctx context.Context, all []Checkpoint, b Bounds) (left []Checkpoint, err error) {
	for {
		gone := Expired(all, b, time.Now())
		stay := false
		for _, r := range gone {
			if ctx.Err() != nil {
				return all, err
			}
			i := indexOf(all, r.Directory)
			switch rerr := Remove(r.Directory, func() ([]string, error) { return k.waiting(), nil }); {
			case rerr == nil:
				log.G(ctx).WithFields(log.Fields{"directory": r.Directory, "bound": r.Reason, "created": r.Created}).Info("Checkpoint of pod removed")
				k.tally.removed(r.Reason, true)
				all = append(all[:i], all[i+1:]...)
				continue
			case !errors.Is(rerr, ErrInUse):
				k.tally.removed(r.Reason, false)
				err = errors.Join(err, rerr)
			}
			all[i].Stays, stay = true, true
		}
		if !stay {
			return all, err
		}
	}
}

func indexOf(all []Checkpoint, dir string) int {
	for i, c := range all {
		if c.Directory == dir {
			return i
		}
	}
	panic("retention: " + dir + " is removed, and was not there")
}

// note remembers what was found with these settings.
func (k *Keeper) note(s Settings, f Found, err error) {
	st := State{Directory: s.Directory, Count: len(f.Checkpoints), Damaged: f.Damaged, Exceeded: Exceeded(f.Checkpoints, s.Bounds, time.Now())}
	for _, c := range f.Checkpoints { // the newest is first
		st.Bytes += c.Size
		st.Oldest = c.Created
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	st.Fault = errors.Join(err, k.failed)
	k.state = st
}

// warn logs what is wrong, unless it was logged before.
func (k *Keeper) warn(ctx context.Context, fault error) {
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	k.mu.Lock()
	before := k.warned
	k.warned = text
	k.mu.Unlock()
	if text != "" && text != before {
		log.G(ctx).WithError(fault).Warn("Failed to look after checkpoints of pods; retrying")
	}
}

// State is what there is now; if the disk does not answer, what there was last.
func (k *Keeper) State(ctx context.Context) State {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done := make(chan struct{})
	select {
	case k.looking <- struct{}{}:
		go func() {
			defer close(done)
			defer func() { <-k.looking }()
			s := k.now()
			found, err := k.scanner.scan(s.Directory)
			k.note(s, found, err)
		}()
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}
