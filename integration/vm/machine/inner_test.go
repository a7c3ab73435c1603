package machine

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// events are those of a run of tests that run beside each other, and of which one
// takes all others along.
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

// TestReport sees what a report makes of them, by the eyes of who reads its output: it
// fails by design, so that is another process.
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
	testbed.Fails(t, err, "a test that failed in the machine has not failed here")
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
			t.Errorf("nothing says %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}

	// Whoever asks for one is not kept waiting by the others.
	c = exec.Command(os.Args[0], "-test.v", "-test.timeout=2m", "-test.run=^TestReport$/^TestA$/^one$")
	c.Env = append(os.Environ(), variable+"=1")
	out, _ = c.CombinedOutput() // a sibling has failed, and so has what is above both
	if text := string(out); !strings.Contains(text, "--- PASS: TestReport/TestA/one (") || strings.Contains(text, "TestReport/TestB") {
		t.Errorf("one test alone:\n%s", out)
	}
}
