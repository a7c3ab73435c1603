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

// Explain adds to an error without a message what the runtime wrote to the container's stderr. The
// runtime writes there if it fails before it can write its log, for example because of a missing
// shared library.
func Explain(err error, output []byte) error {
	var failed *Error
	if !errors.As(err, &failed) || failed.Message != "" {
		return err
	}
	if last := Message(output); last != "" {
		return fmt.Errorf("%s and wrote to stderr: %s", failed.End(), last)
	}
	return err
}

// IsOfPod reports whether the pod caused a runtime's error: its program is missing or cannot be
// executed (runc and crun, Go's exec, runsc), or its memory limit is too low (runc).
func IsOfPod(output string) bool {
	return slices.ContainsFunc([]string{"executable file", `exec: "`, "error finding executable", "memory limit too low", "unable to set memory limit"}, func(words string) bool {
		return strings.Contains(output, words)
	})
}

// FailureMessage returns the message of a failed runtime from a FIFO that was opened without
// blocking and has no other reader; "" if there is no message.
func FailureMessage(f *os.File) string { return Message(ReadWaiting(f)) }

// ReadWaiting returns the current content of a FIFO.
func ReadWaiting(f *os.File) []byte {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var output []byte
	chunk := make([]byte, 4096)
	_ = conn.Control(func(fd uintptr) {
		for len(output) < maxCaptured {
			n, err := unix.Read(int(fd), chunk)
			if err != nil || n <= 0 {
				return
			}
			output = append(output, chunk[:n]...)
		}
	})
	return output
}

// ReadTail returns the end of a file, or nothing if it cannot be read.
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

// textMessage matches an error in the text format of logrus.
var textMessage = regexp.MustCompile(`level=(?:error|fatal)\b.*? msg=("(?:[^"\\]|\\.)*"|\S+)`)

// usage matches the first line of the help that runsc and crun print after a wrong argument.
var usage = regexp.MustCompile("^(Usage:|Try `)")

// Message returns a runtime's error from its log or stderr. It is the last error of a JSON log;
// without one, the last error of a text log; and without both, the last line before a usage text.
func Message(output []byte) string {
	var fromJSON, fromText, last string
	for line := range bytes.Lines(output) {
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

// Shorten keeps the start and the end of a text: a runtime's message begins with the operation and
// ends with the cause.
func Shorten(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxMessage {
		return s
	}
	const half = maxMessage/2 - 4
	return strings.ToValidUTF8(s[:half], "") + " […] " + strings.ToValidUTF8(s[len(s)-half:], "")
}

// IsUnknown reports whether a runtime refused a call because it has no such container. runc, crun
// and runsc have no exit code for this case, only these messages.
func IsUnknown(err error) bool {
	var e *Error
	if !errors.As(err, &e) || strings.Contains(e.Message, "shared libraries") { // a message of the dynamic loader
		return false
	}
	return slices.ContainsFunc([]string{"does not exist", "No such file or directory", "file does not exist", "not found"}, func(words string) bool {
		return strings.Contains(e.Message, words)
	})
}
