package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cri/berth/integration/testbed"
)

// levels are the methods of an entry that log a message.
var levels = []string{"Trace", "Debug", "Info", "Print", "Warn", "Warning", "Error", "Fatal", "Panic"}

// makesEntry are functions and methods that return an entry.
var makesEntry = []string{"G", "GetLogger", "WithContext", "WithError", "WithField", "WithFields", "WithTime"}

// passesOn are files that log messages of a library, which vary.
var passesOn = []string{"pkg/engine/streaming/log.go"}

// infinitives are verbs in the infinitive. A message that begins with one does not state whether
// the step was done or failed.
var infinitives = strings.Fields(`
	abort add answer apply ask attach build change check clean clear close collect connect
	copy count create cut delete detach disconnect discard drop end erase exec find finish
	flush forget get give go hand hold ignore join keep kill leave let list listen load look
	make measure mend mount move open pass pin prepare probe promote publish pull put read
	record recover refuse reject release reload remove repeat replace reset resize restart
	restore resume retry roll run save send serve set show skip start stop sweep take tear
	tell thaw try undo unmount update use wait walk watch write`)

// faults returns how a message of the log breaks the rules for messages.
func faults(message string) []string {
	var all []string
	if first, _ := utf8.DecodeRuneInString(message); !unicode.IsUpper(first) {
		all = append(all, "begin with a capital letter")
	}
	if strings.HasSuffix(message, ".") {
		all = append(all, "leave out the full stop at the end")
	}
	first, _, _ := strings.Cut(message, " ")
	if slices.Contains(infinitives, strings.ToLower(strings.Trim(first, ",;:"))) {
		all = append(all, fmt.Sprintf("%q does not say what became of it: write \"Failed to …\", what happened (past tense), or what is going on (participle)", first))
	}
	if strings.ContainsAny(message, "%\n") {
		all = append(all, "put what varies into fields")
	}
	return append(all, wordsIn(message, logs)...)
}

func TestFaultsOfMessages(t *testing.T) {
	for message, want := range map[string]string{
		"Image pulled": "",
		"Failed to record container exit; will retry": "",
		"Retrying probe":                   "",
		"CRI call":                         "",
		"Removed files that had been busy": "",
		"Failed to remove the kept binary": "",
		"Killed by the end-to-end test":    `"end": say`,
		"image pulled":                     "capital",
		"":                                 "capital",
		"Image pulled.":                    "full stop",
		"Record container exit":            `"Record" does not say`,
		"Wait: again":                      `"Wait:" does not say`,
		"Pulled %s":                        "fields",
		"Failed to remove canary pod":      "self-check pod",
		"A failed sandbox could not be taken back":        "roll back",
		"Failed to remove a half-made sandbox":            "partially created",
		"Container ended":                                 "exit",
		"Failed to start the next binary":                 "candidate",
		"Binary is no longer a copy of what is installed": "kept binary",
	} {
		got := faults(message)
		if want == "" && len(got) > 0 || want != "" && !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("%q has the faults %q, want %q", message, got, want)
		}
	}
}

// TestLogMessages checks every message that berth can log: a reader of the log must not have to
// learn berth's own words first.
func TestLogMessages(t *testing.T) {
	seen := 0
	for _, of := range product {
		err := filepath.WalkDir(filepath.Join(top, of), func(dir string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			all, err := readMessages(dir)
			for _, m := range all {
				for _, fault := range m.faults() {
					t.Errorf("%s: %q: %s", m.at, m.text, fault)
				}
			}
			seen += len(all)
			return err
		})
		testbed.Must(t, err)
	}
	// A lint that reads no messages would find no faults.
	const least = 200
	if seen < least {
		t.Errorf("found %d messages, want at least %d", seen, least)
	}
}

// message is one call of a logger.
type message struct {
	at, text string
	// varies is whether the text is not a constant.
	varies bool
}

func (m message) faults() []string {
	if m.varies {
		return []string{"write a constant message, and put what varies into fields"}
	}
	return faults(m.text)
}

// readMessages reads the messages that a package's code logs.
func readMessages(dir string) ([]message, error) {
	p := newLoggers()
	err := p.read(dir, passesOn, p.noteMessage)
	return p.found, err
}

// loggers finds log calls in a package without its types: every entry comes from a function of
// makesEntry, or is in a field or variable with one of the names that isEntry has.
type loggers struct {
	files     *token.FileSet
	constants map[string]ast.Expr
	found     []message
}

func newLoggers() loggers {
	return loggers{files: token.NewFileSet(), constants: map[string]ast.Expr{}}
}

// read calls note for every node of a package's code, except in the files of without.
func (p *loggers) read(dir string, without []string, note func(ast.Node) bool) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	var files []*ast.File
	for _, path := range paths {
		if name, _ := filepath.Rel(top, path); strings.HasSuffix(path, "_test.go") || slices.Contains(without, filepath.ToSlash(name)) {
			continue
		}
		file, err := parser.ParseFile(p.files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, p.noteConstants)
		files = append(files, file)
	}
	for _, file := range files {
		ast.Inspect(file, note)
	}
	return err
}

func (p *loggers) noteConstants(node ast.Node) bool {
	if d, ok := node.(*ast.GenDecl); ok && d.Tok == token.CONST {
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				for i, name := range v.Names {
					if i < len(v.Values) {
						p.constants[name.Name] = v.Values[i]
					}
				}
			}
		}
	}
	return true
}

func (p *loggers) noteMessage(node ast.Node) bool {
	call, ok := node.(*ast.CallExpr)
	if !ok {
		return true
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	name, isFormat := strings.CutSuffix(method.Sel.Name, "f")
	args := call.Args
	switch {
	case name == "Log" && len(args) > 1 && isEntry(method.X):
		args = args[1:] // the first is the level
	case !slices.Contains(levels, name) || len(args) == 0 || !isEntry(method.X):
		return true
	}
	m := message{at: strings.TrimPrefix(p.files.Position(call.Pos()).String(), top+"/"), varies: true}
	if text, constant := p.text(args[0]); constant && len(args) == 1 && !isFormat {
		m.text, m.varies = text, false
	}
	p.found = append(p.found, m)
	return true
}

// text is the value of a constant text.
func (p *loggers) text(x ast.Expr) (string, bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(x.Value)
		return text, err == nil && x.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := p.text(x.X)
		right, also := p.text(x.Y)
		return left + right, ok && also && x.Op == token.ADD
	case *ast.Ident:
		if value := p.constants[x.Name]; value != nil {
			return p.text(value)
		}
	}
	return "", false
}

// isEntry is whether x is an entry of a log.
func isEntry(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.CallExpr:
		f, ok := x.Fun.(*ast.SelectorExpr)
		return ok && slices.Contains(makesEntry, f.Sel.Name)
	case *ast.SelectorExpr: // b.log, m.config.Log, log.L
		return slices.Contains([]string{"log", "Log", "L", "entry", "logger"}, x.Sel.Name)
	case *ast.Ident:
		return slices.Contains([]string{"log", "entry", "logger"}, x.Name)
	}
	return false
}
