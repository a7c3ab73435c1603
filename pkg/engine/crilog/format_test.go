package crilog_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/crilog"
)

// line is a parsed line of a log.
type line struct {
	at      time.Time
	stream  string
	partial bool
	content string
}

// parse fails the test if the text violates the format.
func parse(t testing.TB, text []byte) []line {
	t.Helper()
	if len(text) > 0 && text[len(text)-1] != '\n' {
		t.Fatalf("the log ends within a line: %q", tail(text))
	}
	var lines []line
	for l := range bytes.Lines(text) {
		fields := bytes.SplitN(bytes.TrimSuffix(l, []byte{'\n'}), []byte{' '}, 4)
		if len(fields) != 4 {
			t.Fatalf("not a log line: %q", tail(l))
		}
		at, err := time.Parse(time.RFC3339Nano, string(fields[0]))
		if err != nil || !strings.HasSuffix(string(fields[0]), "Z") {
			t.Fatalf("%q is not a time in UTC: %v", fields[0], err)
		}
		if tag := string(fields[2]); tag != "P" && tag != "F" {
			t.Fatalf("%q is not a tag", tag)
		}
		lines = append(lines, line{at, string(fields[1]), fields[2][0] == 'P', string(fields[3])})
	}
	return lines
}

func tail(b []byte) []byte { return b[max(0, len(b)-100):] }

func read(t testing.TB, path string) []line {
	t.Helper()
	text := test.Value(os.ReadFile(path))(t)
	return parse(t, text)
}

func open(t testing.TB, path string, o crilog.Options) *crilog.Log {
	t.Helper()
	l := test.Value(crilog.Open(path, o))(t)
	t.Cleanup(func() { test.Check(t, l.Close()) })
	return l
}

// write fails the test unless the stream accepts the whole text.
func write(t testing.TB, s *crilog.Stream, text string) {
	if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("Write took %d of %d bytes: %v", n, len(text), err)
	}
}

func end(t testing.TB, s *crilog.Stream) {
	test.Check(t, s.Close())
}

// short shows lines as "P content|F content".
func short(lines []line) string {
	parts := make([]string, len(lines))
	for i, l := range lines {
		tag := "F "
		if l.partial {
			tag = "P "
		}
		parts[i] = tag + l.content
	}
	return strings.Join(parts, "|")
}

func TestFormat(t *testing.T) {
	for _, tt := range []struct {
		name     string
		maxLine  int
		terminal bool
		writes   []string
		want     string
	}{
		{name: "nothing"},
		{name: "an empty write", writes: []string{""}},
		{name: "one line", writes: []string{"hello\n"}, want: "F hello"},
		{name: "an empty line", writes: []string{"\n"}, want: "F "},
		{name: "several lines in one write", writes: []string{"a\n\nb\n"}, want: "F a|F |F b"},
		{name: "a line in several writes", writes: []string{"a", "b", "", "c\nd"}, want: "F abc|P d"},
		{name: "a line and its end in two writes", writes: []string{"abc", "\n"}, want: "F abc"},
		{name: "a line without an end", writes: []string{"abc"}, want: "P abc"},
		{name: "blanks and carriage returns are content", writes: []string{" a  b \r\n"}, want: "F  a  b \r"},
		{name: "bytes that are not text", writes: []string{"\x00\xff\xfe\n"}, want: "F \x00\xff\xfe"},

		{name: "a line of the maximum length", maxLine: 4, writes: []string{"abcd\n"}, want: "F abcd"},
		{name: "a line one byte longer", maxLine: 4, writes: []string{"abcde\n"}, want: "P abcd|F e"},
		{name: "a line twice as long", maxLine: 4, writes: []string{"abcdefgh\n"}, want: "P abcd|F efgh"},
		{name: "a long line, byte by byte", maxLine: 4, writes: strings.Split("abcdefghij\n", ""), want: "P abcd|P efgh|F ij"},
		{name: "a long line without an end", maxLine: 4, writes: []string{"abcdefghij"}, want: "P abcd|P efgh|P ij"},
		{name: "a full line without an end", maxLine: 4, writes: []string{"abcd"}, want: "P abcd"},
		{name: "a full line, its end comes later", maxLine: 4, writes: []string{"abcd", "\n"}, want: "F abcd"},
		{name: "a full line, more comes later", maxLine: 4, writes: []string{"abcd", "e\n"}, want: "P abcd|F e"},
		{name: "lines of one byte", maxLine: 1, writes: []string{"abc\n"}, want: "P a|P b|F c"},
		{name: "no limit", maxLine: -1, writes: []string{strings.Repeat("x", 40_000), strings.Repeat("y", 40_000) + "\n"},
			want: "F " + strings.Repeat("x", 40_000) + strings.Repeat("y", 40_000)},
		{name: "the default limit", writes: []string{strings.Repeat("x", crilog.DefaultMaxLine) + "y\n"},
			want: "P " + strings.Repeat("x", crilog.DefaultMaxLine) + "|F y"},

		{name: "a terminal's lines", terminal: true, writes: []string{"a\r\nb\r\n"}, want: "F a|F b"},
		{name: "a terminal's line in pieces", terminal: true, writes: []string{"a\r", "\nb", "\r\n"}, want: "F a|F b"},
		{name: "a terminal's redrawn line", terminal: true, writes: []string{"10%\r20%\r\n"}, want: "F 10%\r20%"},
		{name: "a terminal's line without carriage return", terminal: true, writes: []string{"a\n"}, want: "F a"},
		{name: "only one carriage return is the terminal's", terminal: true, writes: []string{"a\r\r\n"}, want: "F a\r"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			l := open(t, path, crilog.Options{MaxLine: tt.maxLine})
			s := l.Stream(crilog.Stderr)
			want := crilog.Stderr
			if tt.terminal {
				s, want = l.Terminal(), crilog.Stdout
			}
			before := time.Now()
			for _, w := range tt.writes {
				write(t, s, w)
			}
			end(t, s)
			lines := read(t, path)
			if got := short(lines); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			for _, l := range lines {
				if l.stream != want || l.at.Before(before) || l.at.After(time.Now()) {
					t.Errorf("stream %s at %v", l.stream, l.at)
				}
			}
		})
	}
}

func TestStreamIsUsableAfterClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	s := open(t, path, crilog.Options{}).Stream(crilog.Stdout)
	write(t, s, "a")
	end(t, s)
	end(t, s)
	write(t, s, "b\n")
	test.Equal(t, "the result", short(read(t, path)), "P a|F b")
}

func TestOpenAppendsAndSetsTheMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	for _, content := range []string{"a\n", "b\n"} {
		l := open(t, path, crilog.Options{})
		write(t, l.Stream(crilog.Stdout), content)
		test.Check(t, l.Close())
	}
	test.Equal(t, "the result", short(read(t, path)), "F a|F b")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestOpenRefusesWhatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"relative.log", dir, filepath.Join(dir, "missing", "0.log")} {
		test.Fails(t, test.Err(crilog.Open(path, crilog.Options{})), "%s was opened", path)
	}
}

// Open removes the partial line of a writer that was killed within a write.
func TestOpenTakesHalfALineAway(t *testing.T) {
	const whole = "2026-01-02T03:04:05.6Z stdout F whole"
	long := strings.Repeat("x", 100_000)
	for _, tt := range []struct{ name, left, want string }{
		{"half a line", whole + "\n2026-01-02T03:04:05.7Z stdout F ha", "F whole|F next"},
		{"half a time", whole + "\n2026-01-02T0", "F whole|F next"},
		{"whole lines", whole + "\n", "F whole|F next"},
		{"a partial line that is too long to be found", whole + "\n2026-01-02T03:04:05.7Z stdout F " + long, "F whole|F " + long + "|F next"},
		{"one line without an end, perhaps of another writer", whole, "F whole|F next"},
		{"an empty file", "", "F next"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			test.Must(t, os.WriteFile(path, []byte(tt.left), 0o640))
			write(t, open(t, path, crilog.Options{}).Stream(crilog.Stdout), "next\n")
			if got := short(read(t, path)); got != tt.want {
				t.Errorf("got %.200q", got)
			}
		})
	}
}

func TestWithoutAPathOutputIsDropped(t *testing.T) {
	l := open(t, "", crilog.Options{})
	s := l.Stream(crilog.Stdout)
	write(t, s, "a\nb")
	end(t, s)
	test.Checkf(t, l.Reopen(), "Reopen")
}

// Streams share a file: lines never mix, the lines of each stream keep their order,
// and times never decrease.
func TestStreamsShareAFile(t *testing.T) {
	const streams, lines = 4, 5000
	path := filepath.Join(t.TempDir(), "0.log")
	l := open(t, path, crilog.Options{})
	var writers sync.WaitGroup
	for n := range streams {
		writers.Go(func() {
			s := l.Stream(fmt.Sprint("stream", n))
			var chunk []byte
			for i := range lines {
				chunk = fmt.Appendf(chunk, "%d of %d\n", i, n)
				// Chunks end anywhere.
				if cut := len(chunk) - i%7; i%3 == 0 {
					write(t, s, string(chunk[:cut]))
					chunk = append(chunk[:0], chunk[cut:]...)
				}
			}
			write(t, s, string(chunk))
		})
	}
	writers.Wait()
	next := map[string]int{}
	var last time.Time
	for _, l := range read(t, path) {
		want := fmt.Sprintf("%d of %s", next[l.stream], strings.TrimPrefix(l.stream, "stream"))
		if l.content != want || l.partial {
			t.Fatalf("%s: got %q, want %q", l.stream, l.content, want)
		}
		if l.at.Before(last) {
			t.Fatalf("%v comes after %v", l.at, last)
		}
		last = l.at
		next[l.stream]++
	}
	for stream, n := range next {
		if n != lines {
			t.Errorf("%s has %d lines", stream, n)
		}
	}
	if len(next) != streams {
		t.Errorf("%d streams", len(next))
	}
}

func FuzzContentIsTheInput(f *testing.F) {
	f.Add([]byte("hello\nworld"), 16, 3, false)
	f.Add([]byte("\n\n\r\n"), 1, 1, true)
	f.Add([]byte("abcdefgh\n"), 4, 5, false)
	f.Add([]byte("a\r"), 2, 1, true)
	f.Add([]byte("ab\rcd\r\n\r\r\n"), 3, 2, true)
	f.Add(bytes.Repeat([]byte("long line "), 10_000), 0, 4096, false)
	f.Add(bytes.Repeat([]byte{'\n'}, 70_000), -1, 70_000, false)
	f.Add([]byte{0, 0xff, '\n', ' '}, 1, 2, true)
	f.Fuzz(func(t *testing.T, input []byte, maxLine, chunk int, terminal bool) {
		if maxLine > 1<<20 || len(input) > 1<<17 {
			t.Skip("larger than this test needs")
		}
		path := filepath.Join(t.TempDir(), "0.log")
		l := open(t, path, crilog.Options{MaxLine: maxLine})
		s := l.Stream(crilog.Stdout)
		if terminal {
			s = l.Terminal()
		}
		chunk = min(max(chunk, 1, len(input)/200), 1<<16)
		for rest := input; len(rest) > 0; {
			n := min(chunk, len(rest))
			write(t, s, string(rest[:n]))
			rest = rest[n:]
		}
		end(t, s)
		var got []byte
		for _, line := range read(t, path) {
			limit := maxLine
			if limit == 0 {
				limit = crilog.DefaultMaxLine
			}
			if limit > 0 && len(line.content) > limit {
				t.Errorf("a line of %d bytes, the limit is %d", len(line.content), limit)
			}
			got = append(got, line.content...)
			if !line.partial {
				got = append(got, '\n')
			}
		}
		want := input
		if terminal {
			// A line that is split before its carriage return keeps the
			// carriage return, which would otherwise be removed.
			got = bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n"))
			want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))
			got = bytes.ReplaceAll(got, []byte("\r"), nil)
			want = bytes.ReplaceAll(want, []byte("\r"), nil)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the lines joined are %q, the input was %q", tail(got), tail(want))
		}
	})
}
