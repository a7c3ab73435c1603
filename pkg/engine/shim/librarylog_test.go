package shim

import (
	"bytes"
	"context"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/internal/test"
)

func TestLateAnswersAreForDebugging(t *testing.T) {
	for level, want := range map[logrus.Level]string{log.InfoLevel: "other", log.DebugLevel: "debug,other"} {
		var out bytes.Buffer
		l := &logrus.Logger{Out: &out, Level: level, Formatter: &logrus.TextFormatter{DisableTimestamp: true}, Hooks: logrus.LevelHooks{}}
		l.AddHook(lateAnswers{})
		l.WithField("stream", 3).Error(lateAnswer)
		l.Error("other")
		got := out.String()
		if strings.Contains(got, "level=error msg=other") != strings.Contains(want, "other") ||
			strings.Contains(got, "level=debug msg=\""+lateAnswer) != strings.Contains(want, "debug") || strings.Count(got, "\n") != strings.Count(want, ",")+1 {
			t.Errorf("at level %s:\n%s", level, got)
		}
	}
}

// slow answers once answer is closed.
type slow struct {
	taskapi.TTRPCTaskService
	answer chan struct{}
}

func (s slow) Pause(context.Context, *taskapi.PauseRequest) (*emptypb.Empty, error) {
	<-s.answer
	return &emptypb.Empty{}, nil
}

// watcher records late answers in the process's log, after the other hooks have run.
type watcher struct {
	mu   sync.Mutex
	seen []logrus.Level
	lost int
}

func (w *watcher) Levels() []logrus.Level { return logrus.AllLevels }

func (w *watcher) Fire(e *logrus.Entry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.Message != lateAnswer:
	case e.Logger == discardLog:
		w.lost++
	default:
		w.seen = append(w.seen, e.Level)
	}
	return nil
}

// The library still logs the text lateAnswer for an answer that comes too late.
func TestLateAnswerOfAShim(t *testing.T) {
	dir := stateDir(t)
	m := manager(t, dir, "/none")
	before := maps.Clone(log.L.Logger.Hooks)
	w := &watcher{}
	log.L.Logger.AddHook(w)
	t.Cleanup(func() { log.L.Logger.ReplaceHooks(before) })

	socket := filepath.Join(dir, "slow.sock")
	l := test.Value(net.Listen("unix", socket))(t)
	server := test.Value(ttrpc.NewServer())(t)
	service := slow{answer: make(chan struct{})}
	taskapi.RegisterTTRPCTaskService(server, service)
	go func() { _ = server.Serve(context.Background(), l) }()
	t.Cleanup(func() { _ = server.Close() })
	c := test.Value(m.Foreign(t.Context(), Endpoint{Address: "unix://" + socket, Protocol: "ttrpc", Version: 3}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Task.Pause(ctx, &taskapi.PauseRequest{ID: "id"}); err == nil {
		t.Fatal("Pause did not wait")
	}
	close(service.answer)
	test.Eventually(t, "the late answer is logged", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.lost+len(w.seen) > 0
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, level := range w.seen {
		test.Equal(t, "the level of the late answer", level, log.DebugLevel)
	}
}
