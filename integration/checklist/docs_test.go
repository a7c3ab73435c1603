package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// pages returns the Markdown files at the top and in docs, relative to the top.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(top, pattern))
		testbed.Must(t, err)
		for _, path := range paths {
			page, err := filepath.Rel(top, path)
			testbed.Must(t, err)
			found = append(found, page)
		}
	}
	if len(found) < 20 {
		t.Fatalf("only %d pages were found: %v", len(found), found)
	}
	return found
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, page))
	testbed.Must(t, err)
	return string(text)
}

// anchors returns the headings of a page in the form that links to them have.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if code || !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		heading = strings.NewReplacer("&lt;", "", "&gt;", "").Replace(strings.ToLower(strings.TrimSpace(heading)))
		heading = regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(heading, "")
		heading = regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(heading, "")
		all[strings.ReplaceAll(heading, " ", "-")] = true
	}
	return all
}

// TestLinks follows every link from a page to another page or to a file of the repository.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	followed := 0
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			followed++
			if _, err := os.Stat(filepath.Join(top, target)); err != nil {
				t.Errorf("%s: %s: %s does not exist", page, m[1], target)
				continue
			}
			if anchor != "" && !anchors(read(t, target))[anchor] {
				t.Errorf("%s: %s: %s has no such heading", page, m[1], target)
			}
		}
	}
	if followed < 100 {
		t.Errorf("only %d links were found", followed)
	}
}

// sourcePath matches a file or directory of the repository in the text of a page.
var sourcePath = regexp.MustCompile("`((?:cmd|configs|contrib|docs|integration|pkg|proto|scripts)/[A-Za-z0-9_./-]*[A-Za-z0-9_/])`")

// TestSourcePaths checks that every file and directory exists that these pages name.
func TestSourcePaths(t *testing.T) {
	for page, least := range map[string]int{"CONTRIBUTING.md": 40, "docs/architecture.md": 60, "docs/testing.md": 10} {
		paths := sourcePath.FindAllStringSubmatch(read(t, page), -1)
		for _, m := range paths {
			if strings.Contains(m[1], "/Test") { // a test of a package, which TestChecklist checks
				continue
			}
			if _, err := os.Stat(filepath.Join(top, m[1])); err != nil {
				t.Errorf("%s: %s does not exist", page, m[1])
			}
		}
		if len(paths) < least {
			t.Errorf("%s: found only %d paths; is the pattern right?", page, len(paths))
		}
	}
}

// TestPackagesAreNamed checks that docs/architecture.md names each package of the product, except
// internal and test packages.
func TestPackagesAreNamed(t *testing.T) {
	text := read(t, "docs/architecture.md")
	for _, of := range product {
		err := filepath.WalkDir(filepath.Join(top, of), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			sources, err := filepath.Glob(filepath.Join(path, "*.go"))
			if err != nil || len(sources) == 0 || entry.Name() == "testdata" {
				return err
			}
			name, err := filepath.Rel(top, path)
			if err == nil && !strings.Contains(text, strings.TrimPrefix(name, "contrib/cluster/")+"/") && !strings.HasPrefix(name, "internal/") && !strings.HasSuffix(name, "test") {
				t.Errorf("docs/architecture.md does not name %s/", name)
			}
			return err
		})
		testbed.Must(t, err)
	}
}

// TestTestsOfPages checks that every test exists that a page names.
func TestTestsOfPages(t *testing.T) {
	tests, named := allTests(t), 0
	for _, page := range pages(t) {
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(read(t, page), -1) {
			if named++; !tests[name] && name != "TestName" { // a placeholder
				t.Errorf("%s: %s does not exist", page, name)
			}
		}
	}
	if named < 100 {
		t.Errorf("found only %d names of tests", named)
	}
}

// TestWhereToLook checks the table of behaviours and their files in docs/architecture.md.
func TestWhereToLook(t *testing.T) {
	_, table, ok := strings.Cut(read(t, "docs/architecture.md"), "\n## Where to look for\n")
	if !ok {
		t.Fatal("docs/architecture.md lacks the section \"Where to look for\"")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || cells[0] == " behaviour" {
			continue
		}
		rows++
		if len(cells) != 2 || !strings.Contains(cells[1], ".go`") {
			t.Errorf("this row does not name a behaviour and its files: %s", line)
			continue
		}
		for _, m := range sourcePath.FindAllStringSubmatch(cells[1], -1) {
			if info, err := os.Stat(filepath.Join(top, m[1])); err != nil || info.IsDir() {
				t.Errorf("%s is not a file of the repository", m[1])
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d behaviours, want 20 or more", rows)
	}
}

func TestAnchors(t *testing.T) {
	got := anchors("# One, two\n\n```sh\n# code\n```\n### [runtimes.&lt;handler&gt;.options]\n## `x_y` and [a](b.md)\n#not\n")
	for _, want := range []string{"one-two", "runtimeshandleroptions", "x_y-and-a"} {
		if !got[want] {
			t.Errorf("no %q in %v", want, got)
		}
	}
	if len(got) != 3 {
		t.Errorf("the headings are %v, want 3", got)
	}
}

// others are strings of that form that berth does not set as a label or annotation, with the reason.
var others = map[string]string{
	"dev.cosignproject.cosign/signature": "cosign's annotation, only read",
	"github.com/*":                       "import paths",
	"io.kubernetes.cri.pod-annotations":  "a capability of CNI plugins",
	"io.kubernetes.cri.rdt-class":        "in a file of CRI-O",
	"kubernetes.io/egress-bandwidth":     "only read; docs/network.md describes it",
	"kubernetes.io/ingress-bandwidth":    "only read; docs/network.md describes it",
	"node.k8s.io/*":                      "an API group",
	"node.kubernetes.io/":                "taints, only read",
	"types.containerd.io/*":              "a type URL",
}

// label matches what can be a label or an annotation.
var label = regexp.MustCompile(`^(([a-z0-9-]+\.)+[a-z]+/[\w./-]*\*?|(io\.kubernetes\.cri|io\.cri-containerd|dev\.gvisor\.flag|org\.criu)\.[\w.-]+)$`)

// TestLabelsAndAnnotations compares the table of docs/metrics.md with the names in the code.
func TestLabelsAndAnnotations(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "docs/metrics.md"), "\n## Labels and annotations\n")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(table, -1) {
		if label.MatchString(m[1]) {
			listed[m[1]] = false
		}
	}
	var files []*ast.File
	constants, excepted := map[string]ast.Expr{}, map[string]bool{}
	positions := token.NewFileSet()
	for _, path := range programs(t) {
		if strings.HasSuffix(path, ".pb.go") {
			continue
		}
		file, err := parser.ParseFile(positions, filepath.Join(top, path), nil, parser.SkipObjectResolution)
		testbed.Must(t, err)
		files = append(files, file)
		for n := range ast.Preorder(file) {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
				for i, id := range spec.Names {
					constants[file.Name.Name+"."+id.Name] = spec.Values[i]
				}
			}
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			var text string
			var whole bool
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.BasicLit, *ast.BinaryExpr: // a name alone is checked where it is declared
				text, whole = constant(constants, file.Name.Name, n.(ast.Expr))
			}
			if !label.MatchString(text) {
				return true
			}
			prefix := !whole || strings.HasSuffix(text, "/") || strings.HasSuffix(text, ".")
			known := false
			for name := range listed {
				if begin, any := strings.CutSuffix(name, "*"); name == text || any && strings.HasPrefix(text, begin) {
					known, listed[name] = true, true
				} else if prefix && strings.HasPrefix(name, text) {
					known, listed[name] = true, listed[name] || !strings.HasSuffix(text, "/")
				}
			}
			for name := range others {
				if begin, any := strings.CutSuffix(name, "*"); name == text || any && strings.HasPrefix(text, begin) {
					known, excepted[name] = true, true
				}
			}
			if !known {
				t.Errorf("%s: docs/metrics.md does not list %s", positions.Position(n.Pos()), text)
			}
			return false
		})
	}
	for name, used := range listed {
		if !used {
			t.Errorf("docs/metrics.md lists %s, which the code does not have", name)
		}
	}
	for name := range others {
		if !excepted[name] {
			t.Errorf("the exception %s is not in the code", name)
		}
	}
}

// constant returns the text of an expression in a package as far as it is constant, and whether it
// is as a whole. Constants have the names of their packages.
func constant(of map[string]ast.Expr, in string, x ast.Expr) (text string, whole bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(x.Value)
		return text, err == nil && x.Kind == token.STRING
	case *ast.Ident:
		if value := of[in+"."+x.Name]; value != nil {
			return constant(of, in, value)
		}
	case *ast.SelectorExpr:
		if id, ok := x.X.(*ast.Ident); ok && of[id.Name+"."+x.Sel.Name] != nil {
			return constant(of, id.Name, of[id.Name+"."+x.Sel.Name])
		}
	case *ast.BinaryExpr:
		left, whole := constant(of, in, x.X)
		if !whole || x.Op != token.ADD {
			return left, false
		}
		right, whole := constant(of, in, x.Y)
		return left + right, whole
	}
	return "", false
}

// programs returns the Go files of the product without tests, relative to the top.
func programs(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, dir := range []string{"pkg", "cmd", "contrib"} {
		testbed.Must(t, filepath.WalkDir(filepath.Join(top, dir), func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				file, relErr := filepath.Rel(top, path)
				testbed.Must(t, relErr)
				found = append(found, file)
			}
			return err
		}))
	}
	return found
}

// TestWalksNameWhatIsThere checks that every name in the walks of docs/architecture.md exists.
func TestWalksNameWhatIsThere(t *testing.T) {
	_, walks, _ := strings.Cut(read(t, "docs/architecture.md"), "\n## Four walks\n")
	walks, _, _ = strings.Cut(walks, "\n## ")
	named := 0 // shows that the pattern still matches
	for _, m := range regexp.MustCompile(`(?m)^<?[ \d]+((?:cmd/)?[\w/.-]+\.go): ([\w, ]+?)(?:  .*)?$`).FindAllStringSubmatch(walks, -1) {
		file := m[1]
		if !strings.HasPrefix(file, "cmd/") {
			file = "pkg/" + file
		}
		text := read(t, file)
		for name := range strings.SplitSeq(m[2], ", ") {
			named++
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `[\[(]|^\t?(type |var |const )?` + name + `\b`).MatchString(text) {
				t.Errorf("docs/architecture.md names %s of %s, which does not exist", name, file)
			}
		}
	}
	if named < 200 {
		t.Errorf("only %d names were found in the walks", named)
	}
}
