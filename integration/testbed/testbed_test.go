package testbed

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestRunCleansUpLastFirst(t *testing.T) {
	var order []string
	var dir string
	err := Run(t.Context(), "order", t.Output(), func(run T) {
		dir = run.TempDir()
		run.Cleanup(func() { order = append(order, "first") })
		run.Cleanup(func() { order = append(order, "second") })
		order = append(order, "body")
	})
	Must(t, err)
	if want := []string{"body", "second", "first"}; !slices.Equal(order, want) {
		t.Errorf("the order was %v, want %v", order, want)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
}

func TestRunReportsEveryFailure(t *testing.T) {
	cleaned := false
	err := Run(t.Context(), "failing", t.Output(), func(run T) {
		run.Cleanup(func() { cleaned = true })
		run.Cleanup(func() { run.Errorf("in a cleanup") })
		run.Cleanup(func() { panic("of a cleanup") })
		run.Fatalf("in the body")
		run.Errorf("never reached")
	})
	for _, want := range []string{"in the body", "in a cleanup", "of a cleanup"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not have %q", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "never reached") {
		t.Errorf("Fatalf did not end the body: %v", err)
	}
	if !cleaned {
		t.Error("a failing cleanup kept the others from running")
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := Run(ctx, "cancelled", t.Output(), func(run T) {
		cancel()
		Eventually(run, callTimeout, func() error { return errors.New("still waiting") })
	})
	if err == nil || !strings.Contains(err.Error(), "still waiting") {
		t.Errorf("got %v, want the last error of the wait", err)
	}
}

func TestParseLog(t *testing.T) {
	const stamp = "2024-05-06T07:08:09.123456789Z"
	good := stamp + " stdout P part\n" + stamp + " stdout F  rest of it \n" + stamp + " stderr F \n"
	lines, err := ParseLog([]byte(good))
	Must(t, err)
	var b bytes.Buffer
	for _, line := range lines {
		tag := "F"
		if line.Partial {
			tag = "P"
		}
		b.WriteString(line.Time.Format("2006-01-02T15:04:05.000000000Z07:00") + " " + line.Stream + " " + tag + " " + line.Text + "\n")
	}
	Same(t, b.String(), good, "the parsed log is")
	for name, bad := range map[string]string{
		"no newline":  stamp + " stdout F x",
		"no text":     stamp + " stdout F\n",
		"no stream":   stamp + " stdin F x\n",
		"no tag":      stamp + " stdout Q x\n",
		"no time":     "yesterday stdout F x\n",
		"empty entry": "\n",
	} {
		if lines, err := ParseLog([]byte(bad)); err == nil {
			t.Errorf("%s: %q was read as %v", name, bad, lines)
		}
	}
}
