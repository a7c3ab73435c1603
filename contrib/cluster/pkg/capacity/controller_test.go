package capacity

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-cri/berth/internal/test"
)

// A pod that is made again under its name is an update where pods are listed anew: also the
// node that it left has room again.
func TestChanged(t *testing.T) {
	here, there := &Pod{node: "here"}, &Pod{node: "there"}
	var got []string
	h := changed(func(p *Pod) { got = append(got, p.node) })
	for _, c := range []struct {
		what string
		do   func()
		want []string
	}{
		{"comes", func() { h.OnAdd(here, false) }, []string{"here"}},
		{"moves", func() { h.OnUpdate(here, there) }, []string{"here", "there"}},
		{"goes", func() { h.OnDelete(there) }, []string{"there"}},
		{"went unseen", func() { h.OnDelete(cache.DeletedFinalStateUnknown{Obj: there}) }, []string{"there"}},
		{"is something else", func() { h.OnAdd("here", false) }, nil},
	} {
		got = nil
		if c.do(); !slices.Equal(got, c.want) {
			t.Errorf("one that %s: got %v, want %v", c.what, got, c.want)
		}
	}
}

// busy is an API server that only says so.
type busy struct{}

func (busy) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Body: http.NoBody}, nil
}

// mute is an API server that takes questions and answers none.
type mute struct{}

func (mute) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A controller that has never seen anything does not hold the lease for ever.
func TestRunEndsWithoutAnswers(t *testing.T) {
	for _, server := range []http.RoundTripper{busy{}, mute{}} {
		client := test.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://away", Transport: server}))(t)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			if err := Run(ctx, client, ByStatus, NewMetrics(prometheus.NewRegistry())); err == nil || !strings.Contains(err.Error(), "the API server has not listed ") {
				t.Errorf("%T: it ended with %v", server, err)
			}
			time.Sleep(5 * time.Minute) // until client-go has woken
		})
	}
}

// Run ends with its context while the API server is busy: client-go sleeps for up to a minute then.
func TestRunEndsWhileTheServerIsBusy(t *testing.T) {
	client := test.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://busy", Transport: busy{}}))(t)
	synctest.Test(t, func(t *testing.T) {
		const told = 20 * time.Second
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), told)
		defer cancel()
		if err := Run(ctx, client, ByStatus, NewMetrics(prometheus.NewRegistry())); err != nil {
			t.Errorf("it ended with %v", err)
		}
		if late := time.Since(begun) - told; late > 0 {
			t.Errorf("it ended %v after it was told to", late)
		}
		time.Sleep(5 * time.Minute) // until client-go has woken
	})
}
