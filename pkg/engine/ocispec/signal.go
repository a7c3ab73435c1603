package ocispec

import (
	"strings"
	"syscall"

	"github.com/moby/sys/signal"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopSignal returns the signal that asks a container to stop, and its name
// ("SIGTERM", "SIGRTMIN+3"): the request's stop_signal, else the image's, else
// SIGTERM. An image's signal that does not exist counts as none.
func StopSignal(cfg *runtimeapi.ContainerConfig, image string) (syscall.Signal, string) {
	for _, name := range []string{criSignalName(cfg.GetStopSignal()), image} {
		if name == "" {
			continue
		}
		if sig, err := signal.ParseSignal(name); err == nil && sig > 0 {
			return sig, signalNames[sig]
		}
	}
	return syscall.SIGTERM, "SIGTERM"
}

// CRISignal is the form of a signal's name in ContainerStatus.stop_signal;
// SIGNAL_RUNTIME_DEFAULT for one that the CRI has no name for.
func CRISignal(name string) runtimeapi.Signal {
	name = strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)
	if v, ok := runtimeapi.Signal_value["SIGNAL_"+name]; ok {
		return runtimeapi.Signal(v)
	}
	return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
}

// criSignalName turns the enum's SIGNAL_SIGRTMINPLUS3 into RTMIN+3.
func criSignalName(s runtimeapi.Signal) string {
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	name := strings.TrimPrefix(strings.TrimPrefix(s.String(), "SIGNAL_"), "SIG")
	return strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name)
}

// aliases are second names of signals; everything prints the first.
var aliases = map[string]bool{"CLD": true, "IOT": true, "POLL": true, "STKFLT": false}

var signalNames = func() map[syscall.Signal]string {
	names := make(map[syscall.Signal]string, len(signal.SignalMap))
	for name, sig := range signal.SignalMap {
		if !aliases[name] {
			names[sig] = "SIG" + name
		}
	}
	return names
}()
