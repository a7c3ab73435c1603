package shim

import (
	"os"
	"slices"
	"strings"
)

// passedOn are the variables of the daemon that programs of pods may need. The daemon's
// environment can hold passwords, of proxies for one, and a supervisor or a shim lives
// beside pods, with memory and children of its own. NOTIFY_SOCKET must never be here:
// runc would take it for its container's. Neither must Go's tuning: it is for the daemon's
// memory, and supervisors and runtimes are Go, too.
var passedOn = []string{"PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "DBUS_SYSTEM_BUS_ADDRESS"}

// kataConfig names a configuration file. Kata's shim has no other way to be told but
// options, which handlers need not have.
const kataConfig = "KATA_CONF_FILE"

// Environment is what of this process's environment a supervisor and a runtime are
// started with.
func Environment() []string { return environment(os.Environ()) }

// environment is what of environ a program of pods is started with: passedOn, LC_*, and
// what more names.
func environment(environ []string, more ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return !slices.Contains(passedOn, name) && !strings.HasPrefix(name, "LC_") && !slices.Contains(more, name)
	})
}
