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

// changed reports the nodes of a pod. While the watch is interrupted, a pod can be deleted and
// created again on another node. The next list then reports one update. changed must report both
// nodes.
func TestChanged(t *testing.T) {
	here, there := &Pod{node: "here"}, &Pod{node: "there"}
	var got []string
	h := changed(func(p *Pod) { got = append(got, p.node) })
	for _, c := range []struct {
		what string
		do   func()
		want []string
	}{
		{"added", func() { h.OnAdd(here, false) }, []string{"here"}},
		{"moved", func() { h.OnUpdate(here, there) }, []string{"here", "there"}},
		{"deleted", func() { h.OnDelete(there) }, []string{"there"}},
		{"deleted during a gap of the watch", func() { h.OnDelete(cache.DeletedFinalStateUnknown{Obj: there}) }, []string{"there"}},
		{"not a pod", func() { h.OnAdd("here", false) }, nil},
	} {
		got = nil
		if c.do(); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
}

// busy is an API server that answers each request with 429.
type busy struct{}

func (busy) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Body: http.NoBody}, nil
}

// mute is an API server that accepts requests but never answers.
type mute struct{}

func (mute) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Run returns an error if no list was ever received, so that the lease is not kept forever.
func TestRunEndsWithoutAnswers(t *testing.T) {
	for _, server := range []http.RoundTripper{busy{}, mute{}} {
		client := test.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://away", Transport: server}))(t)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			if err := Run(ctx, client, ByStatus, NewMetrics(prometheus.NewRegistry())); err == nil || !strings.Contains(err.Error(), "the API server has not listed ") {
				t.Errorf("%T: Run returns %v", server, err)
			}
			time.Sleep(5 * time.Minute) // until client-go has stopped sleeping
		})
	}
}

// Run ends with its context, even while client-go sleeps. After a 429, client-go sleeps for up to a
// minute.
func TestRunEndsWhileTheServerIsBusy(t *testing.T) {
	client := test.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://busy", Transport: busy{}}))(t)
	synctest.Test(t, func(t *testing.T) {
		const told = 20 * time.Second
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), told)
		defer cancel()
		if err := Run(ctx, client, ByStatus, NewMetrics(prometheus.NewRegistry())); err != nil {
			t.Errorf("Run returns %v, want no error", err)
		}
		if late := time.Since(begun) - told; late > 0 {
			t.Errorf("Run ended %v after its context", late)
		}
		time.Sleep(5 * time.Minute) // until client-go has stopped sleeping
	})
}
