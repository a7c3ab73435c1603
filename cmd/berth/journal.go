package main

import (
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/printable"
)

// isJournal reports whether f is the journal's stream, by the value of JOURNAL_STREAM
// (systemd.exec(5)).
func isJournal(f *os.File, stream string) bool {
	var st unix.Stat_t
	if stream == "" || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// printableMessages escapes unprintable characters in messages. Formatters escape only fields, and
// libraries put texts of registries into messages.
type printableMessages struct {
	logrus.Formatter
	// journal prefixes a message with its priority (sd-daemon(3)), for "journalctl -p warning".
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
