package screen

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// model is a screen as bubbletea has it: messages change it, and a view is drawn of it.
type model struct {
	//nolint:containedctx // bubbletea calls what needs it
	ctx    context.Context
	source Source
	known  seen
	// now is when something was known last.
	now                   time.Time
	width, height, scroll int
}

type sampled struct {
	view View
	err  error
	at   time.Time
}

// due: it is time for a sample.
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

// ended is whether the last sample failed for good.
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
		m.scroll = 1 << 20 // more than there are; what is drawn sets it right
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

// styles are attributes (SGR) in the terminal's own colors. bubbletea leaves out those
// that the terminal does not have.
var styles = map[Kind]string{Title: "1", Head: "1;36", Warn: "33", Bad: "31", Dim: "2"}

func styled(l Line) string {
	if style := styles[l.Kind]; style != "" {
		return "\x1b[" + style + "m" + l.Text + "\x1b[m"
	}
	return l.Text
}
