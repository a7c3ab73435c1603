package testbed

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/containerd/console"
	"golang.org/x/sys/unix"
)

// Terminal is a terminal with a program, and with an emulated screen.
type Terminal struct {
	master console.Console
	tty    *os.File
	screen *vt.SafeEmulator
	before unix.Termios
	ended  chan error

	mu      sync.Mutex
	written strings.Builder
}

// StartOnTerminal starts a command at a terminal of that size. The screen answers the queries that
// programs send to terminals.
func StartOnTerminal(t T, command *exec.Cmd, columns, lines int) *Terminal {
	t.Helper()
	master, path, err := console.NewPty()
	if err != nil {
		t.Fatalf("%v", err)
	}
	tty, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := &Terminal{master: master, tty: tty, screen: vt.NewSafeEmulator(columns, lines), ended: make(chan error, 1)}
	s.Resize(t, columns, lines)
	s.before = s.mode(t)
	command.Stdin, command.Stdout, command.Stderr = tty, tty, tty
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := command.Start(); err != nil {
		t.Fatalf("%v", err)
	}
	go s.show()
	go io.Copy(master, s.screen) //nolint:errcheck // ends with the terminal
	go func() { s.ended <- command.Wait() }()
	t.Cleanup(func() {
		command.Process.Kill() //nolint:errcheck // it may have ended
		tty.Close()
		master.Close()
	})
	return s
}

func (s *Terminal) show() {
	buffer := make([]byte, 1<<15)
	for {
		n, err := s.master.Read(buffer)
		s.mu.Lock()
		s.written.Write(buffer[:n])
		s.mu.Unlock()
		s.screen.Write(buffer[:n]) //nolint:errcheck // the emulator does not fail
		if err != nil {
			return
		}
	}
}

// Resize changes the size of the window.
func (s *Terminal) Resize(t T, columns, lines int) {
	t.Helper()
	s.screen.Resize(columns, lines)
	if err := s.master.Resize(console.WinSize{Width: uint16(columns), Height: uint16(lines)}); err != nil { //nolint:gosec // a screen is small
		t.Fatalf("%v", err)
	}
}

// Type types keys at the terminal.
func (s *Terminal) Type(t T, keys string) {
	t.Helper()
	if _, err := io.WriteString(s.master, keys); err != nil {
		t.Fatalf("%v", err)
	}
}

// Screen returns the text that is on the screen now.
func (s *Terminal) Screen() string {
	var b strings.Builder
	for y := range s.screen.Height() {
		var line strings.Builder
		for x := range s.screen.Width() {
			if cell := s.screen.CellAt(x, y); cell != nil {
				line.WriteString(cell.Content)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// Written returns all bytes that were written to the screen.
func (s *Terminal) Written() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

// Shows waits until check returns nil for the screen.
func (s *Terminal) Shows(t T, check func(screen string) error) {
	t.Helper()
	Eventually(t, time.Minute, func() error {
		screen := s.Screen()
		if err := check(screen); err != nil {
			return fmt.Errorf("%w on\n%s", err, screen)
		}
		return nil
	})
}

// Showing is a check for Shows: all patterns are on the screen.
func Showing(patterns ...string) func(screen string) error {
	return func(screen string) error {
		for _, p := range patterns {
			if !regexp.MustCompile(p).MatchString(screen) {
				return fmt.Errorf("%s is not shown", p)
			}
		}
		return nil
	}
}

// Hiding is a check for Shows: the text is not on the screen.
func Hiding(text string) func(screen string) error {
	return func(screen string) error {
		if strings.Contains(screen, text) {
			return fmt.Errorf("%q is shown", text)
		}
		return nil
	}
}

// Quits types q, and fails unless the command then exits with status 0.
func (s *Terminal) Quits(t T) {
	t.Helper()
	s.Type(t, "q")
	Checkf(t, s.Ends(t), "after q")
}

// Ends waits until the command exits, and fails unless the terminal is as before: its modes, the
// main screen and a visible cursor.
func (s *Terminal) Ends(t T) error {
	t.Helper()
	var err error
	select {
	case err = <-s.ended:
	case <-time.After(time.Minute):
		t.Fatalf("the command does not end; its screen is\n%s", s.Screen())
	}
	Same(t, s.mode(t), s.before, "the terminal's modes are")
	Eventually(t, time.Minute, func() error {
		if s.screen.IsAltScreen() || s.screen.CursorHidden() {
			return fmt.Errorf("second screen: %t, cursor hidden: %t", s.screen.IsAltScreen(), s.screen.CursorHidden())
		}
		return nil
	})
	return err
}

func (s *Terminal) mode(t T) unix.Termios {
	t.Helper()
	mode, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS) //nolint:gosec // a descriptor is small
	if err != nil {
		t.Fatalf("%v", err)
	}
	return *mode
}
