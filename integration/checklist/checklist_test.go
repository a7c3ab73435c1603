package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/testbed"
)

const top = "../.."

// The lengths of the two lists in docs/testing.md, so that a dropped line is noticed.
const (
	total      = 96
	totalPains = 14
)

func testingDocument(t *testing.T, heading string) []line {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, document))
	testbed.Must(t, err)
	lines, err := parse(string(text), heading)
	testbed.Must(t, err)
	return lines
}

// TestChecklist compares docs/testing.md with the code: each line names tests, and each of these
// exists. Each test named TestPain… is in the list of pains.
func TestChecklist(t *testing.T) {
	listed := map[string]bool{}
	for part, want := range map[string]int{heading: total, pains: totalPains} {
		lines := testingDocument(t, part)
		if len(lines) != want {
			t.Errorf("%q has %d lines, want %d", part, len(lines), want)
		}
		proven(t, lines)
		for _, l := range lines {
			for _, p := range l.proofs {
				_, test := p.split()
				listed[test] = true
			}
		}
	}
	for name := range allTests(t) {
		if strings.HasPrefix(name, "TestPain") && !listed[name] {
			t.Errorf("%s is not in the list of pains", name)
		}
	}
}

// proven fails unless lines are numbered, and each has tests that exist.
func proven(t *testing.T, lines []line) {
	t.Helper()
	numbers := map[string]int{}
	for _, l := range lines {
		subject, _, _ := strings.Cut(l.name, " ")
		numbers[subject]++
		if want := fmt.Sprintf("%s %d", subject, numbers[subject]); l.name != want {
			t.Errorf("line %q should be %q", l.name, want)
		}
		if l.text == "" {
			t.Errorf("%s has no text", l.name)
		}
	}
	code := sources{}
	for _, l := range lines {
		t.Run(l.name, func(t *testing.T) {
			if len(l.proofs) == 0 {
				t.Fatal("the line names no test")
			}
			for _, p := range l.proofs {
				testbed.Checkf(t, code.has(p), "%s", p)
			}
		})
	}
}

// TestNames checks that every test and golden file exists that the document names.
func TestNames(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, document))
	testbed.Must(t, err)
	tests := allTests(t)
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
		if !tests[name] {
			t.Errorf("%s does not exist", name)
		}
	}
	for _, name := range regexp.MustCompile(`\b(container|sandbox)-[a-z0-9-]+\.json`).FindAllString(string(text), -1) {
		if _, err := os.Stat(filepath.Join(top, "pkg/engine/ocispec/testdata", name)); err != nil {
			t.Errorf("golden file %s does not exist", name)
		}
	}
}

// allTests returns the names of all tests of the product and of integration.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, of := range append(product[:len(product):len(product)], "integration") {
		err := filepath.WalkDir(filepath.Join(top, of), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if s, err := readSource(path); err == nil {
				maps.Copy(tests, s.tests)
			}
			return nil
		})
		testbed.Must(t, err)
	}
	return tests
}

func TestMissingProofs(t *testing.T) {
	code := sources{}
	for _, p := range []proof{
		"conformance/Sandbox/nil linux", "faults/TestEmptyNode/streams", "pkg/engine/validate/TestUserNamespaces",
	} {
		testbed.Checkf(t, code.has(p), "%s", p)
	}
	for _, p := range []proof{
		"conformance/Sandbox/no such check", "faults/TestNoSuchTest", "faults/TestEmptyNode/no such part", "pkg/no/such/package/TestX", "nonsense", "",
	} {
		if code.has(p) == nil {
			t.Errorf("%q exists, want an error", p)
		}
	}
}

func TestChecksHaveNamesOfTheirOwn(t *testing.T) {
	names := conformance.Names()
	slices.Sort(names)
	if again := len(names) - len(slices.Compact(slices.Clone(names))); again != 0 {
		t.Errorf("%d of the suite's checks have the same name as another", again)
	}
}

const someRecords = `
{"Action":"run","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestGood","Output":"fail"}
{"Action":"pass","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestGood","Elapsed":0.1}
{"Action":"pass","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestGood/a_part"}
{"Action":"fail","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestRepeated"}
{"Action":"pass","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestRepeated"}
{"Action":"fail","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestBad"}
{"Action":"skip","Package":"github.com/berth-cri/berth/pkg/a","Test":"TestSkipped"}
{"Action":"pass","Package":"github.com/berth-cri/berth/integration/faults","Test":"TestGood"}
{"Action":"pass","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestBerth/runc/Group/both_can"}
{"Action":"pass","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestBerth/runsc/Group/both_can"}
{"Action":"pass","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestBerth/runc/Group/one_can"}
{"Action":"skip","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestBerth/runsc/Group/one_can"}
{"Action":"skip","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestBerth/runsc/Group/none_can"}
{"Action":"pass","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestBerth/runc/Group/one_fails"}
{"Action":"fail","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestBerth/runsc/Group/one_fails"}
{"Action":"pass","Package":"github.com/berth-cri/berth/integration/conformance","Test":"TestContainerd/Group/only_another"}
{"Action":"fail","Package":"github.com/berth-cri/berth/pkg/a","Elapsed":3}
`

func TestOutcomes(t *testing.T) {
	r := results{}
	testbed.Must(t, r.read(strings.NewReader(someRecords)))
	for p, want := range map[proof]outcome{
		"pkg/a/TestGood": passed, "pkg/a/TestGood/a part": passed, "pkg/a/TestRepeated": passed, "pkg/a/TestBad": failed, "pkg/a/TestSkipped": skipped,
		"pkg/a/TestAbsent": absent, "pkg/b/TestGood": absent, "faults/TestGood": passed, "kubelet/TestGood": absent,
		"conformance/Group/both can": passed, "conformance/Group/one can": passed, "conformance/Group/none can": skipped,
		"conformance/Group/one fails": failed, "conformance/Group/only another": absent, "conformance/Group/both": absent,
	} {
		if got := r.of(p); got != want {
			t.Errorf("outcome of %s: %s, want %s", p, got, want)
		}
	}
	testbed.Fails(t, r.read(strings.NewReader(`{"Action":"pass"`)), "truncated records are accepted")
}

func TestRun(t *testing.T) {
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	doc := write("testing.md", "# Testing\n\n| not | a | line |\n\n"+heading+`

Words.

| line | what holds | proven by |
|---|---|---|
| One 1 | well | `+"`pkg/a/TestGood`, `conformance/Group/one can`"+` |
| One 2 | not so well | `+"`pkg/a/TestGood` `pkg/a/TestBad`"+` |
| Two 1 | unknown | |

## Something else

| Not 1 | counted | `+"`x`"+` |

`+pains+`

| line | what holds | proven by |
|---|---|---|
| Pain 1 | solved | `+"`pkg/a/TestGood`"+` |
`)
	var out strings.Builder
	open, err := run(&out, doc, []string{write("unit.json", someRecords)})
	if err != nil || open != 2 {
		t.Errorf("%d lines are open, %v, want 2", open, err)
	}
	for _, want := range []string{"✓ One 1 ", "✗ One 2 ", "      pkg/a/TestBad failed\n", "✗ Two 1 ", "✓ Pain 1 ", "2 of 4 lines"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	for name, args := range map[string][2]string{
		"no records": {doc, ""}, "a missing record": {doc, "missing.json"}, "no document": {"missing.md", doc},
		"a document without the list": {write("other.md", "# Other\n"), doc}, "not a record": {doc, doc},
		"a document without the pains": {write("half.md", "\n"+heading+"\n\n| One 1 | x | |\n"), doc},
		"a row of two cells":           {write("row.md", "\n"+heading+"\n\n| One 1 | x |\n"), doc},
	} {
		var records []string
		if args[1] != "" {
			records = []string{args[1]}
		}
		if _, err := run(&out, args[0], records); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
