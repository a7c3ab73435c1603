package step_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/step"
)

func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r step.Recorder
		ctx := context.WithValue(t.Context(), step.Key{}, &r)
		var all sync.WaitGroup
		for range 2 { // the times of one name are added
			_, end := step.Begin(ctx, step.Plugins)
			time.Sleep(time.Second)
			end(nil)
			end(nil) // once
		}
		for _, name := range []string{step.Network, step.Runtime} {
			all.Go(func() {
				_, end := step.Begin(ctx, name)
				defer end(errors.New("failed"))
				time.Sleep(3 * time.Second)
			})
		}
		all.Wait()
		took := map[string]time.Duration{}
		for _, s := range r.Steps() {
			took[s.Name] += s.Took
		}
		want := map[string]time.Duration{step.Plugins: 2 * time.Second, step.Network: 3 * time.Second, step.Runtime: 3 * time.Second}
		if len(took) != len(want) || len(r.Steps()) != len(want) {
			t.Errorf("steps: %v", r.Steps())
		}
		for name := range want {
			test.Equal(t, fmt.Sprintf("%s took", name), took[name], want[name])
		}
	})
}

// The span of a step is a child of the call's span, and the parent of steps within it.
func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	ctx, call := provider.Tracer("test").Start(t.Context(), "call")
	outer, endOuter := step.Begin(ctx, step.Network)
	_, endInner := step.Begin(outer, step.Runtime)
	endInner(nil)
	endOuter(errors.New("no address is left"))
	call.End()
	ended := spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans", len(ended))
	}
	inner, network := ended[0], ended[1]
	if inner.Name() != step.Runtime || inner.Parent().SpanID() != network.SpanContext().SpanID() {
		t.Errorf("the parent of %s is %v", inner.Name(), inner.Parent().SpanID())
	}
	if network.Name() != step.Network || network.Parent().SpanID() != call.SpanContext().SpanID() {
		t.Errorf("the parent of %s is %v", network.Name(), network.Parent().SpanID())
	}
	if s := network.Status(); s.Code != codes.Error || s.Description != "no address is left" {
		t.Errorf("the status of the step is %+v", s)
	}
}

func TestNobodyMeasures(t *testing.T) {
	ctx, end := step.Begin(t.Context(), step.Fetch)
	end(nil)
	if ctx != t.Context() {
		t.Error("Begin created a context although nothing records steps")
	}
	if n := testing.AllocsPerRun(100, func() { _, end := step.Begin(context.Background(), step.Fetch); end(nil) }); n > 0 {
		t.Errorf("%v allocations although nothing records steps", n)
	}
}

// Operators read the names in metrics, logs and "berth pods --slow".
func TestNamesAreDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../docs/metrics.md"))(t)
	row := regexp.MustCompile("(?m)^\\| `step` \\|.*$").Find(text)
	for _, name := range []string{step.Queue, step.Network, step.Shared, step.Resolve, step.Fetch, step.Unpack, step.Rootfs, step.Plugins, step.Runtime} {
		if !strings.Contains(string(row), "`"+name+"`") {
			t.Errorf("the label step in docs/metrics.md lacks `%s`", name)
		}
	}
}
