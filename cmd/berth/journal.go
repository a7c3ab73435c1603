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

// printableMessages escapes in messages what does not print. Formatters do so with
// fields, and those of libraries have in messages what registries wrote.
type printableMessages struct {
	logrus.Formatter
	// journal puts a message's priority in front of it, as sd-daemon(3) has it,
	// so that "journalctl -p warning" finds what it should.
	journal bool
}

func (f printableMessages) Format(e *logrus.Entry) ([]byte, error) {
	e.Message = printable.Line(e.Message)
	text, err := f.Formatter.Format(e)
	if err != nil || !f.journal {
		return text, err
	}
	return append(fmt.Appendf(nil, "<%d>", priorities[e.Level]), text...), nil
}

// priorities are those of syslog(3).
var priorities = [...]int{
	logrus.PanicLevel: 2, logrus.FatalLevel: 2, logrus.ErrorLevel: 3, logrus.WarnLevel: 4,
	logrus.InfoLevel: 6, logrus.DebugLevel: 7, logrus.TraceLevel: 7,
}
