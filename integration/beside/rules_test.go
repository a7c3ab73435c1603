package beside

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// theirRules is a chain of the node's administrator.
const theirRules = "THEIRS"

func addTheirRules(t *testing.T) {
	t.Helper()
	for _, rule := range []string{
		"-N " + theirRules,
		"-A " + theirRules + " -d 192.0.2.1/32 -j RETURN",
		"-A POSTROUTING -s 192.0.2.0/24 -j " + theirRules,
	} {
		run(t, append([]string{"iptables", "--wait", "--table", "nat"}, strings.Fields(rule)...)...)
	}
}

func natRules(t *testing.T) string {
	t.Helper()
	return run(t, "iptables", "--wait", "--table", "nat", "--list-rules") + run(t, "nft", "list", "ruleset", "inet")
}

// TestRulesFlushed deletes the rules of running pods, as firewalls do.
func TestRulesFlushed(t *testing.T) {
	onNode(t, nil, func(t *testing.T) {
		b := newBed(t)
		addTheirRules(t)
		// As firewalld does when it is reloaded, or an operator, or a script of nftables rules that
		// begins with "flush ruleset".
		flushes := map[string]func(){
			"rules and chains": func() {
				run(t, "iptables", "--wait", "--table", "nat", "--flush")
				run(t, "iptables", "--wait", "--table", "nat", "--delete-chain")
			},
			"rules": func() { run(t, "iptables", "--wait", "--table", "nat", "--flush") },
			"a chain": func() {
				run(t, "iptables", "--wait", "--table", "nat", "--flush", "POSTROUTING")
			},
		}
		if nft, err := exec.LookPath("nft"); err == nil {
			flushes["all of nftables"] = func() { run(t, nft, "flush", "ruleset") }
		}
		port := int32(15_000)
		for name, flush := range flushes {
			served, plain := b.pod(t, hostPort(port)), b.pod(t)
			b.answers(t, port)
			flush()
			testbed.Eventually(t, time.Minute, func() error {
				_, err := b.Client.Status(t.Context(), &runtimeapi.StatusRequest{})
				if err == nil && !strings.Contains(natRules(t), plain.IP(t)) {
					err = fmt.Errorf("the masquerading of a running pod is not restored:\n%s", natRules(t))
				}
				return err
			})
			run(t, "iptables", "--wait", "--table", "nat", "--flush") // the administrator's rules are added again
			_ = exec.Command("iptables", "--wait", "--table", "nat", "--delete-chain", theirRules).Run()
			addTheirRules(t)
			theirs := theirLines(natRules(t))
			plain.Stop(t)
			served.Remove(t)
			again := b.pod(t, hostPort(port))
			b.answers(t, port)
			if ip := again.IP(t); !strings.Contains(natRules(t), ip) {
				t.Errorf("after the flush of %s there is no masquerading for %s:\n%s", name, ip, natRules(t))
			}
			b.Restart(t)
			again.Stop(t)
			again.Remove(t)
			plain.Remove(t)
			b.nothingLeft(t)
			if now := theirLines(natRules(t)); now != theirs {
				t.Errorf("the administrator's rules are\n%swant\n%s", now, theirs)
			}
			port++
		}
	})
}

func theirLines(rules string) string {
	var out strings.Builder
	for line := range strings.Lines(rules) {
		if strings.Contains(line, theirRules) {
			out.WriteString(line)
		}
	}
	return out.String()
}
