package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-cri/berth/pkg/installer"
)

// server has one lease, as an API server keeps it: by versions, one writer at a time.
type server struct {
	mu      sync.Mutex
	lease   *coordination.Lease
	version int
	asked   int
	forbid  string
	// broken is how many questions are answered by an error that passes.
	broken int
	// nowhere says that the namespace does not exist.
	nowhere bool
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	say := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	status := func(code int, reason metav1.StatusReason, text string) {
		say(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: text})
	}
	if r.Method == s.forbid {
		status(http.StatusForbidden, metav1.StatusReasonForbidden, `leases.coordination.k8s.io is forbidden: User "x" cannot create resource "leases"`)
		return
	}
	if s.broken > 0 {
		s.broken--
		status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd has no leader")
		return
	}
	if s.nowhere && r.Method == http.MethodPost {
		status(http.StatusNotFound, metav1.StatusReasonNotFound, `namespaces "berth-system" not found`)
		return
	}
	if r.Method == http.MethodGet {
		if s.lease == nil {
			status(http.StatusNotFound, metav1.StatusReasonNotFound, "no lease")
			return
		}
		say(http.StatusOK, s.lease)
		return
	}
	var l coordination.Lease
	if err := json.NewDecoder(r.Body).Decode(&l); err != nil {
		status(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if s.lease != nil && l.ResourceVersion != s.lease.ResourceVersion {
		status(http.StatusConflict, metav1.StatusReasonConflict, "somebody was faster")
		return
	}
	s.version++
	l.ResourceVersion = strconv.Itoa(s.version)
	l.Kind, l.APIVersion = "Lease", "coordination.k8s.io/v1"
	s.lease = &l
	say(http.StatusOK, s.lease)
}

func nodeOf(t *testing.T, url, name string) *cluster {
	t.Helper()
	c, err := clusterOf(&rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, "/", name, "berth-system")
	if err != nil {
		t.Fatal(err)
	}
	c.pause, c.every = time.Millisecond, time.Millisecond
	t.Cleanup(func() { c.stop(); c.renewing.Wait() })
	return c
}

// TestTurns has nodes want the turn at the same time: each gets it, and no two at once.
func TestTurns(t *testing.T) {
	s := &server{}
	h := httptest.NewServer(s)
	defer h.Close()
	var mu sync.Mutex
	has, most := 0, 0
	var all sync.WaitGroup
	for n := range 3 {
		c := nodeOf(t, h.URL, fmt.Sprintf("node-%d", n))
		all.Go(func() {
			if err := c.Turn(t.Context()); err != nil {
				t.Error(err)
				return
			}
			if err := c.Turn(t.Context()); err != nil { // who has it gets it again
				t.Error(err)
			}
			mu.Lock()
			has++
			most = max(most, has)
			mu.Unlock()
			runtime.Gosched()
			mu.Lock()
			has--
			mu.Unlock()
			c.Done()
		})
	}
	all.Wait()
	if most != 1 {
		t.Errorf("%d nodes had the turn at once", most)
	}
	if s.lease.Spec.HolderIdentity != nil {
		t.Errorf("%s has it still", *s.lease.Spec.HolderIdentity)
	}
}

func TestTurnForbidden(t *testing.T) {
	h := httptest.NewServer(&server{forbid: http.MethodPost})
	defer h.Close()
	err := nodeOf(t, h.URL, "node").Turn(t.Context())
	if err == nil || !strings.Contains(err.Error(), `cannot create resource "leases"`) {
		t.Errorf("got %v", err)
	}
}

// What passes is told once and asked again; what does not pass ends the waiting.
func TestTurnRefused(t *testing.T) {
	s := &server{broken: 3}
	h := httptest.NewServer(s)
	defer h.Close()
	var said bytes.Buffer
	l := logrus.New()
	l.Out = &said
	ctx := log.WithLogger(t.Context(), logrus.NewEntry(l))
	if err := nodeOf(t, h.URL, "node").Turn(ctx); err != nil {
		t.Fatal(err)
	}
	if strings.Count(said.String(), "Failed to take the turn") != 1 || !strings.Contains(said.String(), "etcd has no leader") {
		t.Errorf("it says %s", said.String())
	}
	none := httptest.NewServer(&server{nowhere: true})
	defer none.Close()
	if err := nodeOf(t, none.URL, "node").Turn(t.Context()); err == nil || !strings.Contains(err.Error(), `namespaces "berth-system" not found`) {
		t.Errorf("got %v", err)
	}
}

// A turn that another node has taken is over, and stays the other's until that is done.
func TestTurnLost(t *testing.T) {
	s := &server{}
	h := httptest.NewServer(s)
	defer h.Close()
	c := nodeOf(t, h.URL, "slow")
	ctx, end := c.follow(t.Context())
	defer end(nil)
	if err := c.Turn(ctx); err != nil {
		t.Fatal(err)
	}
	other := nodeOf(t, h.URL, "other")
	s.mu.Lock()
	s.version++
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	other.hold(s.lease)
	s.mu.Unlock()
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, errLost) {
		t.Errorf("the run ended by %v", cause)
	}
	// It waits for its next turn as any other node.
	brief, enough := context.WithCancel(t.Context())
	looked := make(chan error)
	go func() { looked <- c.Turn(brief) }()
	s.await(t, 5)
	enough()
	if err := <-looked; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if *s.lease.Spec.HolderIdentity != "other" {
		t.Errorf("%s has it", *s.lease.Spec.HolderIdentity)
	}
}

// await waits until the server was asked so often again.
func (s *server) await(t *testing.T, more int) {
	t.Helper()
	s.mu.Lock()
	until := s.asked + more
	s.mu.Unlock()
	for t.Context().Err() == nil {
		s.mu.Lock()
		now := s.asked
		s.mu.Unlock()
		if now >= until {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestMayAsk(t *testing.T) {
	h := httptest.NewServer(&server{forbid: http.MethodGet})
	defer h.Close()
	err := nodeOf(t, h.URL, "node").MayAsk(t.Context())
	if !errors.Is(err, installer.ErrFinal) || !strings.Contains(err.Error(), "is forbidden") {
		t.Errorf("got %v", err)
	}
}

func TestFree(t *testing.T) {
	now := time.Now()
	lease := func(holder string, renewed time.Time) *coordination.Lease {
		l := &coordination.Lease{}
		if holder != "" {
			l.Spec.HolderIdentity = &holder
		}
		l.Spec.RenewTime = &metav1.MicroTime{Time: renewed}
		return l
	}
	var s seen
	for n, c := range []struct {
		l    *coordination.Lease
		at   time.Duration
		want bool
	}{
		{lease("", now), 0, true},
		{lease("us", now), 0, true},
		{lease("other", now), 0, false},
		// The other node's clock is hours behind: only that it renews counts.
		{lease("other", now.Add(-3*time.Hour)), time.Second, false},
		{lease("other", now.Add(-3*time.Hour)), 50 * time.Second, false},
		{lease("other", now.Add(-2*time.Hour)), 55 * time.Second, false},
		{lease("other", now.Add(-2*time.Hour)), 110 * time.Second, false},
		{lease("other", now.Add(-2*time.Hour)), 116 * time.Second, true},
	} {
		if got := s.free(c.l, "us", now.Add(c.at)); got != c.want {
			t.Errorf("%d: free is %t", n, got)
		}
	}
}

func TestServing(t *testing.T) {
	node := func(name string, ready core.ConditionStatus) *core.Node {
		n := &core.Node{}
		n.Status.NodeInfo.ContainerRuntimeVersion = name
		n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: ready, Message: "why"}}
		return n
	}
	for name, c := range map[string]struct {
		n     *core.Node
		berth bool
		wrong string
	}{
		"moved":           {node("berth://1.0.0", core.ConditionTrue), true, ""},
		"not yet":         {node("containerd://2.4.2", core.ConditionTrue), true, "the node's runtime is containerd://2.4.2"},
		"not ready":       {node("berth://1.0.0", core.ConditionFalse), true, "the node is not Ready: why"},
		"back":            {node("containerd://2.4.2", core.ConditionTrue), false, ""},
		"not back":        {node("berth://1.0.0", core.ConditionTrue), false, "the node's runtime is berth://1.0.0"},
		"back, not ready": {node("cri-o://1.37", core.ConditionUnknown), false, "not Ready"},
	} {
		t.Run(name, func(t *testing.T) {
			err := serving(c.n, c.berth)
			if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}
