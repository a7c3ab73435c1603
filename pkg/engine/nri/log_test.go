package nri

import (
	"errors"
	"testing"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
)

// A failed registration that the plugin can repeat is a warning. It used to be an error at every start.
func TestPluginsThatCanComeAgainAreNoErrors(t *testing.T) {
	to, lines := test.NewNullLogger()
	ctx := log.WithLogger(t.Context(), logrus.NewEntry(to))
	for format, want := range map[string]log.Level{
		"failed to synchronize plugin: %v":     log.WarnLevel,
		"failed to start external plugin: %v":  log.WarnLevel,
		"failed to create external plugin: %v": log.ErrorLevel,
	} {
		logger{}.Errorf(ctx, format, errors.New("ttrpc: closed"))
		if got := lines.LastEntry(); got == nil || got.Level != want || got.Data["detail"] == "" {
			t.Errorf("%q is logged as %v, want %s", format, got, want)
		}
	}
}
