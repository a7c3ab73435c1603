package shim

import (
	"io"
	"sync"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// lateAnswer is what the ttrpc library logs as an error when an answer comes that
// nobody waits for any more. Who called has had an error of its own by then.
const lateAnswer = "ttrpc: received message on inactive stream"

// quietLibrary makes late answers a matter of debugging. The library gives its
// clients no logger of their own, so this is said to the process's.
var quietLibrary = sync.OnceFunc(func() { log.L.Logger.AddHook(lateAnswers{}) })

type lateAnswers struct{}

func (lateAnswers) Levels() []logrus.Level { return []logrus.Level{log.ErrorLevel} }

func (lateAnswers) Fire(e *logrus.Entry) error {
	switch {
	case e.Message != lateAnswer:
	case e.Logger.IsLevelEnabled(log.DebugLevel):
		e.Level = log.DebugLevel
	default:
		e.Logger = nowhere
	}
	return nil
}

var nowhere = &logrus.Logger{Out: io.Discard, Formatter: &logrus.JSONFormatter{}, Hooks: logrus.LevelHooks{}}
