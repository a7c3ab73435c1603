package machine

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// events are the records of a run with parallel subtests, in which the last test panics and ends the
// run.
const events = `{"Action":"start","Package":"p"}
{"Action":"run","Test":"TestA"}
{"Action":"run","Test":"TestA/one"}
{"Action":"pause","Test":"TestA/one"}
{"Action":"run","Test":"TestA/two/with_a_slash"}
{"Action":"output","Test":"TestA/two/with_a_slash","Output":"    a_test.go:3: it broke\n"}
{"Action":"fail","Test":"TestA/two/with_a_slash"}
{"Action":"cont","Test":"TestA/one"}
{"Action":"pass","Test":"TestA/one"}
{"Action":"fail","Test":"TestA"}
{"Action":"run","Test":"TestB"}
{"Action":"output","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Test":"TestB","Output":"    b_test.go:7: no such part\n"}
{"Action":"skip","Test":"TestB"}
{"Action":"run","Test":"TestC"}
{"Action":"run","Test":"TestC/hangs"}
{"Action":"output","Output":"panic: test timed out\n"}
{"Action":"fail"}
`

// TestReport checks the output of report for these events. Because report makes the test fail, it
// runs in another process.
func TestReport(t *testing.T) {
	const variable = "BERTH_TEST_REPORT"
	if os.Getenv(variable) != "" {
		o := report(t, strings.NewReader(events))
		t.Logf("%d tests, %d failed, and %q", o.tests, o.failed, o.rest)
		return
	}
	c := exec.Command(os.Args[0], "-test.v", "-test.run=^TestReport$")
	c.Env = append(os.Environ(), variable+"=1")
	out, err := c.CombinedOutput()
	testbed.Fails(t, err, "a failure in the machine is not reported as a failure here")
	for _, want := range []string{
		"    --- FAIL: TestReport/TestA (",
		"        --- PASS: TestReport/TestA/one (",
		"        --- FAIL: TestReport/TestA/two/with_a_slash (",
		"a_test.go:3: it broke",
		"    --- SKIP: TestReport/TestB (",
		"b_test.go:7: no such part",
		"        --- FAIL: TestReport/TestC/hangs (",
		"the test did not end",
		`6 tests, 4 failed, and "panic: test timed out\n"`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}

	// A run of one subtest reports only that one, and does not wait for the others.
	c = exec.Command(os.Args[0], "-test.v", "-test.timeout=2m", "-test.run=^TestReport$/^TestA$/^one$")
	c.Env = append(os.Environ(), variable+"=1")
	out, _ = c.CombinedOutput() // fails, because a sibling and so the parent failed
	if text := string(out); !strings.Contains(text, "--- PASS: TestReport/TestA/one (") || strings.Contains(text, "TestReport/TestB") {
		t.Errorf("the output of one subtest alone is\n%s", out)
	}
}
