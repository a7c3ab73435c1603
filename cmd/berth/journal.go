package main

import (
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/printable"
)

// isJournal says whether f is the journal's, by what its service manager has put
// into JOURNAL_STREAM (systemd.exec(5)).
func isJournal(f *os.File, stream string) bool {
	var st unix.Stat_t
	if stream == "" || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// forJournal puts a message's priority in front of it, as sd-daemon(3) has it,
// so that "journalctl -p warning" finds what it should.
type forJournal struct {
	logrus.Formatter
}

func (f forJournal) Format(e *logrus.Entry) ([]byte, error) {
	text, err := f.Formatter.Format(e)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, "<%d>", priority(e.Level)), text...), nil
}

// printableMessages escapes in messages what does not print. Formatters do so with
// fields, and those of libraries have what registries say in messages.
type printableMessages struct {
	logrus.Formatter
}

func (f printableMessages) Format(e *logrus.Entry) ([]byte, error) {
	e.Message = printable.Line(e.Message)
	return f.Formatter.Format(e)
}

// priority is that of syslog(3).
func priority(l logrus.Level) int {
	switch l {
	case logrus.PanicLevel, logrus.FatalLevel:
		return 2
	case logrus.ErrorLevel:
		return 3
	case logrus.WarnLevel:
		return 4
	case logrus.InfoLevel:
		return 6
	default:
		return 7
	}
}
