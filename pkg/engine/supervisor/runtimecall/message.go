package runtimecall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Explain adds to an error without words what the runtime wrote to the stderr
// that it had for the container: it does so when it fails before it can write its
// log, as with a shared library that is missing.
func Explain(err error, said []byte) error {
	var failed *Error
	if !errors.As(err, &failed) || failed.Message != "" {
		return err
	}
	if last := Message(said); last != "" {
		return fmt.Errorf("%s and wrote to stderr: %s", failed.End(), last)
	}
	return err
}

// IsOfPod knows what runtimes say when a container's program is not in its image, or cannot
// be run (runc and crun, Go's exec, runsc), and when its memory limit is too low (runc).
func IsOfPod(said string) bool {
	return slices.ContainsFunc([]string{"executable file", `exec: "`, "error finding executable", "memory limit too low", "unable to set memory limit"}, func(words string) bool {
		return strings.Contains(said, words)
	})
}

// Complaint is the message of a runtime that failed, in a FIFO which was opened without
// blocking and has no other reader; empty without one.
func Complaint(f *os.File) string { return Message(ReadWaiting(f)) }

// ReadWaiting returns what a FIFO holds at the moment.
func ReadWaiting(f *os.File) []byte {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var said []byte
	chunk := make([]byte, 4096)
	_ = conn.Control(func(fd uintptr) {
		for len(said) < maxCaptured {
			n, err := unix.Read(int(fd), chunk)
			if err != nil || n <= 0 {
				return
			}
			said = append(said, chunk[:n]...)
		}
	})
	return said
}

// ReadTail returns the end of a log file.
func ReadTail(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxCaptured), maxCaptured))
	return b
}

// textMessage is an error as logrus prints it without a terminal.
var textMessage = regexp.MustCompile(`level=(?:error|fatal)\b.*? msg=("(?:[^"\\]|\\.)*"|\S+)`)

// usage begins what follows a mistake in the command line: runsc's and crun's.
var usage = regexp.MustCompile("^(Usage:|Try `)")

// Message finds a runtime's error in its log or stderr:
// the last error of a JSON log, else of a text log, else the last line before a usage.
func Message(said []byte) string {
	var fromJSON, fromText, last string
	for line := range bytes.Lines(said) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil {
			if (entry.Level == "error" || entry.Level == "fatal") && entry.Msg != "" {
				fromJSON = entry.Msg
			}
			continue
		}
		if m := textMessage.FindSubmatch(line); m != nil {
			fromText = string(m[1])
			if s, err := strconv.Unquote(fromText); err == nil {
				fromText = s
			}
		}
		if last != "" && usage.Match(line) {
			break
		}
		last = string(line)
	}
	for _, m := range []string{fromJSON, fromText, last} {
		if m = strings.TrimSpace(m); m != "" {
			return Shorten(m)
		}
	}
	return ""
}

// Shorten keeps the start and the end of a text: a runtime's message begins
// with what it did and ends with what went wrong.
func Shorten(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxMessage {
		return s
	}
	const half = maxMessage/2 - 4
	return strings.ToValidUTF8(s[:half], "") + " […] " + strings.ToValidUTF8(s[len(s)-half:], "")
}

// IsUnknown reports whether a runtime refused a call because it has no such
// container. There is no code for it, only these words of runc, crun and runsc.
func IsUnknown(err error) bool {
	var e *Error
	if !errors.As(err, &e) || strings.Contains(e.Message, "shared libraries") { // the loader's words
		return false
	}
	return slices.ContainsFunc([]string{"does not exist", "No such file or directory", "file does not exist", "not found"}, func(words string) bool {
		return strings.Contains(e.Message, words)
	})
}
