// Gvisor_sentry is the program that runs the kernel of each pod. gVisor's releases have it in
// addition to runsc.
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
