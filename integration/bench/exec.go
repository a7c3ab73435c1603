package main

import (
	"os/exec"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// exec runs `true` in a container by CRI, and by the runtime alone, in turns.
func (tr *trial) exec() {
	p, _ := tr.newPod()
	const times = 10
	var took, bare []float64
	for n := range times + 1 {
		byCRI, byRuntime := tr.execSync(p), tr.bareExec(p)
		if n == 0 {
			continue // what only the first exec in a container costs
		}
		tr.record("exec", byCRI)
		tr.record("bare", byRuntime)
		took, bare = append(took, byCRI), append(bare, byRuntime)
	}
	tr.record("overBare", median(took)/median(bare))
}

func (tr *trial) execSync(p *pod) float64 {
	tr.Helper()
	begin := time.Now()
	response, err := tr.peer.Client.ExecSync(tr.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: p.container, Cmd: []string{"true"}, Timeout: int64(callTimeout.Seconds()),
	})
	took := time.Since(begin)
	if err != nil || response.GetExitCode() != 0 {
		tr.Fatalf("exec true: exit code %d, %v", response.GetExitCode(), err)
	}
	return milliseconds(took)
}

func (tr *trial) bareExec(p *pod) float64 {
	tr.Helper()
	command := exec.CommandContext(tr.Context(), tr.runtime, "--root", tr.peer.runtimeRoot(tr.handler), "exec", p.container, "true")
	begin := time.Now()
	output, err := command.CombinedOutput()
	took := time.Since(begin)
	if err != nil {
		tr.Fatalf("%s: %v: %s", command, err, output)
	}
	return milliseconds(took)
}
