// Package screen shows in a terminal what changes while people look at it: a page that
// is drawn again with each sample, until they end it. What is no terminal gets the pages
// as text.
package screen

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/output"
)

// Source is what is shown, and how.
type Source[S any] struct {
	// Name is who is away when there is no sample: "berth".
	Name string
	// Every is the time between samples, and Timeout bounds one.
	Every, Timeout time.Duration
	Sample         func(context.Context) (S, error)
	// Final says that another try changes nothing about an error.
	Final func(error) bool
	// View gets the last sample, nil before the first, and the columns of the screen; 0 is
	// any number. Pure.
	View func(sample *S, now time.Time, width int) Page
}

// seen is what is known so far.
type seen[S any] struct {
	sample *S
	// away is when the first of the samples failed that failed since the last one.
	away time.Time
	err  error
}

// with is what is known after one more try. Pure.
func (s seen[S]) with(sample S, err error, now time.Time) seen[S] {
	if err != nil {
		if s.err == nil {
			s.away = now
		}
		s.err = err
		return s
	}
	return seen[S]{sample: &sample}
}

// page is the view of what is known. What was there before the source went away stays
// to be seen.
func (s Source[S]) page(known seen[S], now time.Time, width int) Page {
	p := s.View(known.sample, now, width)
	if known.err != nil {
		since := now.Sub(known.away).Truncate(time.Second)
		p.Top = append(p.Top, Line{fmt.Sprintf("%s is away since %s (%s), trying again every %s: %v",
			s.Name, known.away.Format(time.TimeOnly), since, s.Every, known.err), Bad})
	}
	return p
}

// try makes a sample.
func (s Source[S]) try(ctx context.Context) (S, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.Sample(ctx)
}

// final says that nothing is to be hoped for.
func (s Source[S]) final(err error) bool { return err != nil && s.Final != nil && s.Final(err) }

// Terminal says whether pages can be drawn there.
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

// Show draws pages on a terminal until somebody quits or ctx ends, which is how it is
// meant to end. The terminal is as before then, whatever happened.
func (s Source[S]) Show(ctx context.Context, in io.Reader, out io.Writer) error {
	// Who takes the terminal away gets it back as it was, too.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	// Of the other signals only those of ctx count: those of a terminal are keys.
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(output.Raw(out)), tea.WithoutSignalHandler()}
	if os.Getenv("NO_COLOR") != "" { // whatever it is; bubbletea asks for a truth value
		options = append(options, tea.WithEnvironment(append(os.Environ(), "NO_COLOR=1")))
	}
	last, err := tea.NewProgram(&model[S]{ctx: ctx, source: s}, options...).Run()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("draw on the terminal: %w; use it without a terminal: \"... | cat\"", err)
	}
	if m, ok := last.(*model[S]); ok && s.final(m.known.err) {
		return m.known.err
	}
	return nil
}

// Print writes pages as text, an empty line between them, until there are so many or
// ctx ends; 0 is any number. If only one is wanted, it has to be there.
func (s Source[S]) Print(ctx context.Context, out io.Writer, pages int) error {
	var known seen[S]
	for n := 1; ; n++ {
		sample, err := s.try(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if s.final(err) || err != nil && pages == 1 {
			return err
		}
		known = known.with(sample, err, time.Now())
		text := s.page(known, time.Now(), 0).plain()
		if n > 1 {
			text = "\n" + text
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
		if n == pages {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.Every):
		}
	}
}
