package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/berth-cri/berth/integration/vm/wire"
)

const (
	pingEvery = 5 * time.Second
	// silence is how long a guest may send nothing: a busy guest answers pings late.
	silence = 3 * time.Minute
)

// line is the conversation with a guest's agent.
type line struct {
	conn net.Conn

	writing sync.Mutex // one frame at a time

	mu    sync.Mutex
	next  uint32              // guarded by mu
	open  map[uint32]*process // guarded by mu
	heard time.Time           // guarded by mu
	hello chan struct{}
	err   error // guarded by mu; why the connection ended
	down  chan struct{}
}

// process is a command that runs in the guest.
type process struct {
	stdout, stderr io.Writer
	done           chan struct{}
	ended          wire.Ended
	err            error
}

// converse begins a conversation over a connection to the agent's port.
func converse(conn net.Conn) *line {
	l := &line{
		conn: conn, next: uint32(time.Now().UnixNano()),
		open: map[uint32]*process{}, heard: time.Now(), hello: make(chan struct{}, 1), down: make(chan struct{}),
	}
	go l.listen()
	return l
}

// askAgain is long, because Hello frames stay in the port until the agent starts and reads them.
const askAgain = 20 * time.Second

// greet waits for Hello from the agent, which sends it when it starts and as an answer to Hello.
func (l *line) greet(ctx context.Context, until time.Time) error {
	for time.Now().Before(until) {
		if err := l.send(wire.Frame{Kind: wire.Hello}); err != nil {
			return err
		}
		select {
		case <-l.hello:
			go l.watch()
			return nil
		case <-l.down:
			return l.why()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(askAgain):
		}
	}
	return errors.New("the guest's agent does not answer")
}

func (l *line) send(f wire.Frame) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return wire.Write(l.conn, f)
}

func (l *line) listen() {
	for {
		f, err := wire.Read(l.conn)
		if err != nil {
			l.end(fmt.Errorf("the connection to the guest ended: %w", err))
			return
		}
		l.mu.Lock()
		l.heard = time.Now()
		e := l.open[f.ID]
		l.mu.Unlock()
		l.take(f, e)
	}
}

func (l *line) take(f wire.Frame, e *process) {
	switch {
	case f.Kind == wire.Hello:
		select {
		case l.hello <- struct{}{}:
		default:
		}
	case e == nil:
	case f.Kind == wire.Stdout:
		_, _ = e.stdout.Write(f.Payload) // the writers of these tests do not fail
	case f.Kind == wire.Stderr:
		_, _ = e.stderr.Write(f.Payload)
	case f.Kind == wire.Exit:
		l.mu.Lock()
		delete(l.open, f.ID)
		l.mu.Unlock()
		e.err = json.Unmarshal(f.Payload, &e.ended)
		close(e.done)
	}
}

// watch sends pings, and ends the conversation if nothing arrives for too long.
func (l *line) watch() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.down:
			return
		case <-tick.C:
		}
		l.mu.Lock()
		quiet := time.Since(l.heard)
		l.mu.Unlock()
		if quiet > silence {
			l.end(fmt.Errorf("the guest hangs: it has sent nothing for %v", quiet.Round(time.Second)))
			return
		}
		go l.send(wire.Frame{Kind: wire.Ping}) //nolint:errcheck // listen ends too if the connection is down
	}
}

// end closes the connection; all running commands fail with why.
func (l *line) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = why
	for id, e := range l.open {
		e.err = why
		close(e.done)
		delete(l.open, id)
	}
	close(l.down)
	l.conn.Close()
}

func (l *line) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *line) start(c wire.Command, stdout, stderr io.Writer) (uint32, *process, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return 0, nil, err
	}
	e := &process{stdout: stdout, stderr: stderr, done: make(chan struct{})}
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return 0, nil, l.err
	}
	l.next++
	id := l.next
	l.open[id] = e
	l.mu.Unlock()
	return id, e, l.send(wire.Frame{Kind: wire.Start, ID: id, Payload: payload})
}

func (l *line) input(id uint32, r io.Reader) error {
	buffer := make([]byte, wire.Most)
	for {
		n, err := r.Read(buffer)
		if n > 0 {
			if err := l.send(wire.Frame{Kind: wire.Input, ID: id, Payload: buffer[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return l.send(wire.Frame{Kind: wire.Input, ID: id})
		}
		if err != nil {
			return err
		}
	}
}
