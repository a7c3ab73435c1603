package testbed

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// LogLine is an entry of a CRI log. A line that is too long for one entry has several, all but the
// last with Partial.
type LogLine struct {
	Time    time.Time
	Stream  string
	Partial bool
	Text    string
}

// ParseLog parses a CRI log strictly: a malformed entry is an error, and so is a last entry without
// a newline.
func ParseLog(body []byte) ([]LogLine, error) {
	var lines []LogLine
	for entry := range bytes.Lines(body) {
		line, err := parseEntry(string(entry))
		if err != nil {
			return lines, fmt.Errorf("log entry %d: %w", len(lines)+1, err)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func parseEntry(entry string) (LogLine, error) {
	entry, whole := strings.CutSuffix(entry, "\n")
	if !whole {
		return LogLine{}, fmt.Errorf("%q has no newline", entry)
	}
	fields := strings.SplitN(entry, " ", 4)
	if len(fields) != 4 {
		return LogLine{}, fmt.Errorf("%q has %d fields, not 4", entry, len(fields))
	}
	at, err := time.Parse(time.RFC3339Nano, fields[0])
	if err != nil {
		return LogLine{}, err
	}
	if fields[1] != "stdout" && fields[1] != "stderr" {
		return LogLine{}, fmt.Errorf("%q is not a stream", fields[1])
	}
	if fields[2] != "P" && fields[2] != "F" {
		return LogLine{}, fmt.Errorf("%q is not a tag", fields[2])
	}
	return LogLine{Time: at, Stream: fields[1], Partial: fields[2] == "P", Text: fields[3]}, nil
}

// Log returns the container's log as it is now.
func (c *Container) Log(t T) []LogLine {
	t.Helper()
	body, err := os.ReadFile(c.LogPath)
	Mustf(t, err, "read the log of container %s", c.ID)
	// What comes after the last newline is still being written.
	lines, err := ParseLog(body[:bytes.LastIndexByte(body, '\n')+1])
	Mustf(t, err, "%s", c.LogPath)
	return lines
}

// WaitLog waits until the log has an entry with the text, and returns it.
func (c *Container) WaitLog(t T, text string) LogLine {
	t.Helper()
	var found LogLine
	Eventually(t, callTimeout, func() error {
		lines := c.Log(t)
		for _, line := range lines {
			if strings.Contains(line.Text, text) {
				found = line
				return nil
			}
		}
		return fmt.Errorf("none of %d entries of %s has %q", len(lines), c.LogPath, text)
	})
	return found
}
