package supervisor

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

const (
	// criuSettles is how long a CRIU that nobody waits for may stay inside of the container:
	// killed before that, it damages the processes that it is inside of.
	criuSettles = 10 * time.Second
	// criuSettlePoll is how often it is looked for meanwhile.
	criuSettlePoll = 20 * time.Millisecond
)

// criuWrite writes a container that goes on afterwards.
type criuWrite struct{ task *task }

// run calls the runtime. Whatever the result, no CRIU is at work on the container when it
// returns: one that is left freezes the container again when it ends, because it was frozen
// when it began.
func (w criuWrite) run(ctx context.Context, args []string, environment ...string) error {
	_, err := w.task.processes.invokeForever(ctx, &call{
		options:     &w.task.journal.Options,
		args:        args,
		environment: environment,
		byCRIU:      true,
		begun:       w.record,
	})
	if err != nil {
		w.settle()
	}
	return errors.Join(err, w.record(Process{}))
}

// record notes for a successor which runtime writes the container.
func (w criuWrite) record(runtime Process) error {
	t := w.task
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.journal.Writer
	t.journal.Writer = runtime
	if err := t.save(); err != nil {
		t.journal.Writer = before
		return err
	}
	return nil
}

// settle waits until nothing is left of a call, and ends what stays.
func (w criuWrite) settle() {
	w.task.mu.Lock()
	runtime := w.task.journal.Writer
	w.task.mu.Unlock()
	if runtime.PID == 0 {
		return
	}
	for end := time.Now().Add(criuSettles); len(groupOf(runtime)) > 0; time.Sleep(criuSettlePoll) {
		if time.Now().After(end) {
			log.G(w.task.context()).Warn("Killing CRIU, whose runtime or supervisor was killed, in the middle of its work on a container")
			_ = unix.Kill(-runtime.PID, unix.SIGKILL)
			return
		}
	}
}

// inherited does so for what a predecessor began.
func (w criuWrite) inherited() {
	w.settle()
	if err := w.record(Process{}); err != nil {
		log.G(w.task.context()).WithError(err).Warn("Failed to remove a checkpoint that was cut off from the journal")
	}
}

// groupOf are the running processes of a runtime's process group: itself, and CRIU's.
func groupOf(runtime Process) []int {
	pids, err := procfs.Processes()
	if err != nil {
		return nil
	}
	var group []int
	for _, pid := range pids {
		if of, err := unix.Getpgid(pid); err != nil || of != runtime.PID {
			continue
		}
		stat, err := procfs.StatOf(pid)
		if err != nil || stat.Ended() || stat.Started < runtime.StartTime {
			continue
		}
		if pid == runtime.PID && stat.Started == runtime.StartTime || isCRIU(pid) {
			group = append(group, pid)
		}
	}
	return group
}

func isCRIU(pid int) bool {
	name, err := os.ReadFile(procfs.Path(pid, "comm"))
	return err == nil && strings.TrimSpace(string(name)) == "criu"
}
