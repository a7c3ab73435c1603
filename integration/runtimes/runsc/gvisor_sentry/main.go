// Gvisor_sentry is the program that gVisor's releases have beside runsc for the kernel of
// each pod.
package main

import (
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/gvisorbinaries"
)

func main() {
	commands := map[util.SubCommand]string{new(sentrycmd.Boot): "", new(sentrycmd.Umount): ""}
	cli.Run(&gvisorbinaries.GvisorSentry, commands, nil)
}
