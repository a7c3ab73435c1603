package machine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// bootedVersion must rise if code below makes a different machine.
const bootedVersion = 3

// booted returns the directory of a saved machine of this kind that has booted: its memory in
// "state", its disk in "disk.qcow2". The first call creates the directory.
func (i image) booted(ctx context.Context, agent string, o Options) (string, error) {
	key, err := i.key(agent, o)
	if err != nil {
		return "", err
	}
	dir := i.path("booted-" + key)
	lock, err := os.OpenFile(i.path(".booted.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close() // which also unlocks it
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		now := time.Now()
		return dir, errors.Join(err, os.Chtimes(dir, now, now))
	}
	m := &Machine{options: o, image: i, agent: agent}
	if err := m.make(""); err != nil {
		return "", err
	}
	defer os.RemoveAll(m.dir)
	if err := m.start(ctx, ""); err != nil {
		return "", err
	}
	defer m.kill()
	fresh, err := os.MkdirTemp(i.dir, ".booted-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	// Wait, because every machine that starts from this state would repeat the rest of the boot.
	if out, err := m.Command("sh", "-c", `systemctl is-system-running --wait >/dev/null; sync; echo 3 >/proc/sys/vm/drop_caches`).Output(ctx); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	m.line.end(errors.New("the machine is being saved"))
	if err := m.putAway(filepath.Join(fresh, "state")); err != nil {
		return "", fmt.Errorf("save a booted machine: %w", err)
	}
	if err := os.Rename(filepath.Join(m.dir, "disk.qcow2"), filepath.Join(fresh, "disk.qcow2")); err != nil {
		return "", errors.Join(err, tool("cp", "--sparse=always", filepath.Join(m.dir, "disk.qcow2"), fresh+"/"))
	}
	if err := i.forget(); err != nil {
		return "", err
	}
	return dir, os.Rename(fresh, dir)
}

// forgotten is how long a booted machine stays after its last use: much longer than a test takes.
const forgotten = 24 * time.Hour

// forget removes the booted machines that no test has used for long.
func (i image) forget() error {
	all, err := filepath.Glob(i.path("booted-*"))
	if err != nil {
		return err
	}
	for _, old := range all {
		if info, err := os.Stat(old); err == nil && time.Since(info.ModTime()) > forgotten {
			if err := os.RemoveAll(old); err != nil {
				return err
			}
		}
	}
	return nil
}

// putAway writes the machine's memory to a file and ends it. The machine is stopped first: while it
// runs, QEMU's emulation can miss a page that is written to.
func (m *Machine) putAway(state string) error {
	conn, err := m.dial("qmp", time.Now().Add(time.Minute))
	if err != nil {
		return err
	}
	defer conn.Close()
	q := &monitor{conn, bufio.NewScanner(conn)}
	for _, order := range []string{
		`{"execute":"qmp_capabilities"}`,
		`{"execute":"stop"}`,
		`{"execute":"migrate-set-parameters","arguments":{"max-bandwidth":8589934592}}`,
		fmt.Sprintf(`{"execute":"migrate","arguments":{"uri":%q}}`, "exec:cat >"+state),
	} {
		if _, err := q.do(order); err != nil {
			return err
		}
	}
	err = wait.PollUntilContextTimeout(context.Background(), 100*time.Millisecond, bootBound, true, func(context.Context) (bool, error) {
		answer, err := q.do(`{"execute":"query-migrate"}`)
		if err == nil && strings.Contains(answer, `"status": "failed"`) {
			err = errors.New(answer)
		}
		return strings.Contains(answer, `"status": "completed"`), err
	})
	if err != nil {
		return fmt.Errorf("write the machine's state: %w", err)
	}
	_, err = q.do(`{"execute":"quit"}`)
	<-m.ended
	return err
}

// monitor is a connection to QEMU's QMP socket.
type monitor struct {
	conn  net.Conn
	lines *bufio.Scanner
}

func (q *monitor) do(order string) (string, error) {
	if _, err := fmt.Fprintln(q.conn, order); err != nil {
		return "", err
	}
	for q.lines.Scan() {
		var answer struct {
			Return *json.RawMessage `json:"return"`
			Error  *json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(q.lines.Bytes(), &answer); err != nil {
			return "", err
		}
		switch {
		case answer.Error != nil:
			return "", fmt.Errorf("%s: %s", order, *answer.Error)
		case answer.Return != nil:
			return q.lines.Text(), nil
		}
	}
	return "", errors.Join(errors.New("QEMU's monitor has ended"), q.lines.Err())
}
