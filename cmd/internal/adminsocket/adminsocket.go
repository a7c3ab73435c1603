// Package adminsocket says where a berth is managed.
package adminsocket

import "os"

const (
	// Default is where a berth with the default configuration is managed.
	Default = "/run/berth/admin.sock"
	// Env replaces it.
	Env = "BERTH_ADMIN_SOCKET"
)

// Usage is that of the flag --admin-socket.
const Usage = "`path` of the daemon's management socket (default $" + Env + ", else " + Default + ")"

// Path is the socket that counts; flag is what was given for this command, or empty.
func Path(flag string) string {
	switch env := os.Getenv(Env); {
	case flag != "":
		return flag
	case env != "":
		return env
	}
	return Default
}
