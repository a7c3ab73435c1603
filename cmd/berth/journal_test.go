package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

func TestMessagesInTheJournalHaveTheirPriority(t *testing.T) {
	var out bytes.Buffer
	l := logrus.New()
	l.SetOutput(&out)
	l.SetLevel(logrus.TraceLevel)
	l.SetFormatter(forJournal{&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true}})
	for level, want := range map[logrus.Level]string{
		logrus.ErrorLevel: "<3>level=error msg=it\n",
		logrus.WarnLevel:  "<4>level=warning msg=it\n",
		logrus.InfoLevel:  "<6>level=info msg=it\n",
		logrus.DebugLevel: "<7>level=debug msg=it\n",
		logrus.TraceLevel: "<7>level=trace msg=it\n",
	} {
		out.Reset()
		l.Log(level, "it")
		if got := out.String(); got != want {
			t.Errorf("%s: got %q, want %q", level, got, want)
		}
	}
}

func TestTheJournalIsKnownByItsFile(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]bool{
		fmt.Sprintf("%d:%d", st.Dev, st.Ino):   true,
		fmt.Sprintf("%d:%d", st.Dev, st.Ino+1): false,
		"":                                     false, "nonsense": false,
	} {
		if got := isJournal(f, stream); got != want {
			t.Errorf("%q: %v", stream, got)
		}
	}
}
