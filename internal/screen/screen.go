// Package screen shows live data in a terminal: a page that is redrawn with each sample, until the
// user quits. Other outputs get the pages as text.
package screen

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/output"
)

// Source configures the samples of a screen.
type Source struct {
	// Name is the name of the sampled program, such as "berth".
	Name string
	// Every is the time between samples, and Timeout bounds one.
	Every, Timeout time.Duration
	Sample         func(context.Context) (View, error)
	// Final reports whether an error is permanent, so that a retry is useless.
	Final func(error) bool
}

// View returns the page of a sample at a time, for a screen of width columns; 0 means no limit.
// Pure.
type View func(now time.Time, width int) Page

// seen is the result of the samples so far.
type seen struct {
	// view is that of the last successful sample; nil before the first.
	view View
	// away is the time of the first failure since the last success.
	away time.Time
	err  error
}

// with returns the result after one more sample. Pure.
func (s seen) with(view View, err error, now time.Time) seen {
	if err == nil {
		return seen{view: view}
	}
	if s.err == nil {
		s.away = now
	}
	s.err = err
	return s
}

// page returns the current page. While the source fails, the last data stays on screen.
func (s Source) page(known seen, now time.Time, width int) Page {
	p := Page{Top: []Line{{s.Name, Title}}}
	if known.view != nil {
		p = known.view(now, width)
	}
	if known.err != nil {
		since := now.Sub(known.away).Truncate(time.Second)
		p.Top = append(p.Top, Line{fmt.Sprintf("no data from %s since %s (%s), trying again every %s: %v",
			s.Name, known.away.Format(time.TimeOnly), since, s.Every, known.err), Bad})
	}
	return p
}

// try takes a sample.
func (s Source) try(ctx context.Context) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.Sample(ctx)
}

// Terminal reports whether pages can be drawn on in and out.
func Terminal(in io.Reader, out io.Writer) bool {
	for _, end := range []any{in, output.Raw(out)} {
		f, ok := end.(*os.File)
		if !ok {
			return false
		}
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
			return false
		}
	}
	return os.Getenv("TERM") != "dumb"
}

// Show draws pages on a terminal until the user quits or ctx ends, which is not an error. It always
// restores the terminal.
func (s Source) Show(ctx context.Context, in io.Reader, out io.Writer) error {
	// SIGHUP, too, must restore the terminal.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	// Other signals end ctx, or arrive as keys from the terminal.
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(output.Raw(out)), tea.WithoutSignalHandler()}
	if os.Getenv("NO_COLOR") != "" { // any value counts; bubbletea expects a boolean
		options = append(options, tea.WithEnvironment(append(os.Environ(), "NO_COLOR=1")))
	}
	last, err := tea.NewProgram(&model{ctx: ctx, source: s}, options...).Run()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("draw on the terminal: %w; append \"| cat\" to the command to print text", err)
	}
	if m, ok := last.(*model); ok && m.ended() {
		return m.known.err
	}
	return nil
}

// Print writes pages as text, separated by empty lines, until ctx ends.
func (s Source) Print(ctx context.Context, out io.Writer) error {
	var known seen
	for separator := ""; ; separator = "\n" {
		view, err := s.try(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && s.Final(err):
			return err
		}
		known = known.with(view, err, time.Now())
		if _, err := io.WriteString(out, separator+s.page(known, time.Now(), 0).plain()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.Every):
		}
	}
}

// model is bubbletea's model: messages change it, and View draws it.
type model struct {
	//nolint:containedctx // bubbletea's callbacks have no context
	ctx    context.Context
	source Source
	known  seen
	// now is the time of the last sample.
	now                   time.Time
	width, height, scroll int
}

type sampled struct {
	view View
	err  error
	at   time.Time
}

// due triggers a sample.
type due struct{}

func (m *model) Init() tea.Cmd { return m.sample }

func (m *model) sample() tea.Msg {
	view, err := m.source.try(m.ctx)
	return sampled{view, err, time.Now()}
}

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		next := m.key(msg.String())
		return m, next
	case due:
		return m, m.sample
	case sampled:
		m.known, m.now = m.known.with(msg.view, msg.err, msg.at), msg.at
		if m.ended() {
			return m, tea.Quit
		}
		return m, tea.Tick(m.source.Every, func(time.Time) tea.Msg { return due{} })
	}
	return m, nil
}

// ended reports whether the last sample failed permanently.
func (m *model) ended() bool { return m.known.err != nil && m.source.Final(m.known.err) }

func (m *model) key(name string) tea.Cmd {
	switch name {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "up", "k":
		m.scroll--
	case "down", "j":
		m.scroll++
	case "pgup":
		m.scroll -= m.height / 2
	case "pgdown", "space":
		m.scroll += m.height / 2
	case "home", "g":
		m.scroll = 0
	case "end", "G":
		m.scroll = 1 << 20 // beyond the end; View limits it
	}
	return nil
}

func (m *model) View() tea.View {
	var lines []Line
	if m.width > 0 && m.height > 0 {
		lines, m.scroll = fit(m.source.page(m.known, m.now, m.width), m.width, m.height, m.scroll)
	}
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = styled(l)
	}
	v := tea.NewView(strings.Join(texts, "\n"))
	v.AltScreen = true
	return v
}

// styles are attributes (SGR) in the terminal's own colors. bubbletea omits unsupported ones.
var styles = map[Kind]string{Title: "1", Head: "1;36", Warn: "33", Bad: "31", Dim: "2"}

func styled(l Line) string {
	if style := styles[l.Kind]; style != "" {
		return "\x1b[" + style + "m" + l.Text + "\x1b[m"
	}
	return l.Text
}
