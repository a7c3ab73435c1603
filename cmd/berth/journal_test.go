package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestMessagesInTheJournalHaveTheirPriority(t *testing.T) {
	var out bytes.Buffer
	l := logrus.New()
	l.SetOutput(&out)
	l.SetLevel(logrus.TraceLevel)
	l.SetFormatter(printableMessages{&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true}, true})
	for level, want := range map[logrus.Level]string{
		logrus.ErrorLevel: "<3>level=error msg=it\n",
		logrus.WarnLevel:  "<4>level=warning msg=it\n",
		logrus.InfoLevel:  "<6>level=info msg=it\n",
		logrus.DebugLevel: "<7>level=debug msg=it\n",
		logrus.TraceLevel: "<7>level=trace msg=it\n",
	} {
		out.Reset()
		l.Log(level, "it")
		test.Equal(t, fmt.Sprint(level), out.String(), want)
	}
}

// Log messages of libraries can contain text from registries. So control characters in log messages
// are escaped.
func TestMessagesPrint(t *testing.T) {
	var out bytes.Buffer
	l := logrus.New()
	l.SetOutput(&out)
	l.SetFormatter(printableMessages{&logrus.TextFormatter{DisableTimestamp: true, ForceColors: true}, false})
	l.WithField("status", "\x1b]0;owned\x07").Warn("fetch failed after status: 500 \x1b[2J\rall is well")
	for _, order := range []string{"\x1b]", "\x1b[2J", "\r"} {
		if bytes.Contains(out.Bytes(), []byte(order)) {
			t.Errorf("the output %q contains the control sequence %q", out.String(), order)
		}
	}
}

func TestIsJournalByDeviceAndInode(t *testing.T) {
	f := test.Value(os.CreateTemp(t.TempDir(), ""))(t)
	defer f.Close()
	var st unix.Stat_t
	test.Must(t, unix.Fstat(int(f.Fd()), &st))
	for stream, want := range map[string]bool{
		fmt.Sprintf("%d:%d", st.Dev, st.Ino):   true,
		fmt.Sprintf("%d:%d", st.Dev, st.Ino+1): false,
		"":                                     false, "nonsense": false,
	} {
		test.Equal(t, fmt.Sprintf("%q", stream), isJournal(f, stream), want)
	}
}

// Control characters in quoted text are escaped in berth's output.
func TestOutputPrints(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"handler", "edit", "runc", "--from", "/no/such\x1b]0;owned\x07/file"}, &stdout, &stderr); code == 0 {
		t.Error("a file that does not exist was accepted")
	}
	if text := stdout.String() + stderr.String(); bytes.ContainsAny([]byte(text), "\x1b\x07") || !bytes.Contains([]byte(text), []byte(`such\u001b]0;owned\u0007`)) {
		t.Errorf("the output is %q", text)
	}
}
