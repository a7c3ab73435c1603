package main

import (
	"fmt"
	"go/ast"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cri/berth/integration/testbed"
)

// makesError are functions that make an error of a text, with the index of that argument.
var makesError = map[string]int{
	"errors.New": 0, "fmt.Errorf": 0,
	"status.Error": 1, "status.Errorf": 1, "grpcstatus.Error": 1, "grpcstatus.Errorf": 1,
}

// names are proper names that would otherwise count as capitalized words.
var names = []string{"Linux", "Kubernetes", "Docker"}

// othersTexts are texts of other programs, which berth repeats.
var othersTexts = []string{
	"resource name may not be empty",                              // of the API server, which "kubectl berth lint" repeats
	" (nobody; in a user namespace, a user whom it does not map)", // the label of a user
}

// gerund matches an error that names a failed step in the wrong form: not in the infinitive.
var gerund = regexp.MustCompile(`^(adding|becoming|changing|checking|closing|connecting|copying|creating|deleting|finding|giving|listening|listing|loading|looking|making|mounting|opening|parsing|pulling|reading|reaping|receiving|recovering|removing|reopening|running|sending|serving|setting|starting|stopping|telling|unmounting|updating|waiting|watching|writing)\b.*: %w$`)

// finite matches the verb of a sentence. A gerund may be the subject of a sentence.
var finite = word(`is|took|failed|timed out`)

// errorFaults returns how the text of an error breaks the rules for errors.
func errorFaults(text string) []string {
	var all []string
	first, _, _ := strings.Cut(text, " ")
	if capitalized(strings.TrimRight(first, ":,;")) {
		all = append(all, "begin with a lower-case letter")
	}
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, ".: %w") {
		all = append(all, "leave out the full stop at the end")
	}
	if gerund.MatchString(text) && !finite.MatchString(text) {
		all = append(all, fmt.Sprintf("%q: write the verb in the infinitive", first))
	}
	return append(all, wordsIn(text, texts)...)
}

// capitalized is whether a word consists of letters of which only the first is a capital. Names of
// calls, keys and acronyms have more capitals, or other characters.
func capitalized(word string) bool {
	if slices.Contains(names, word) {
		return false
	}
	for i, r := range word {
		if unicode.IsUpper(r) != (i == 0) || !unicode.IsLetter(r) {
			return false
		}
	}
	return word != ""
}

// helpFaults returns how the help of a metric breaks the rules for helps.
func helpFaults(text string) []string {
	all := wordsIn(text, texts)
	if first, _ := utf8.DecodeRuneInString(text); !unicode.IsUpper(first) && !unicode.IsDigit(first) {
		all = append(all, "begin with a capital letter, or a number")
	}
	if !strings.HasSuffix(text, ".") {
		all = append(all, "end with a full stop")
	}
	return all
}

func TestFaultsOfErrors(t *testing.T) {
	for text, want := range map[string]string{
		"read config: %w":                       "",
		"RunPodSandbox failed: %w":              "",
		"CRIU is missing":                       "",
		"%s is not a directory":                 "",
		"Linux 5.12 is needed":                  "",
		"it is no longer configured":            "",
		"restoring a checkpoint is unsupported": "",
		"":                                      "",
		"Read config: %w":                       "lower-case",
		"Cannot read it":                        "lower-case",
		"cannot read it.":                       "full stop",
		"cannot read it.: %w":                   "full stop",
		"reading %s: %w":                        "infinitive",
		"%q is no directory":                    "does not exist",
		"there is no handler %q":                "does not exist",
		"it is none of a, b":                    "must be one of",
		"the canary pod failed":                 "self-check pod",
		"it could not be taken back":            "roll back",
		"nobody listens":                        "who that is",
		"who connects cannot be told":           "report",
	} {
		got := strings.Join(errorFaults(text), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q has the faults %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"Completed CRI calls.":           "",
		"1 if it is ready, otherwise 0.": "",
		"Completed CRI calls":            "full stop",
		"completed CRI calls.":           "capital",
		"Trials of binaries.":            "rollout",
	} {
		got := strings.Join(helpFaults(text), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q has the faults %q, want %q", text, got, want)
		}
	}
}

// TestErrorTexts checks the texts of all errors, the help of all metrics, and all other texts of
// commands: a reader must not have to learn berth's own words first.
func TestErrorTexts(t *testing.T) {
	var errs, helps, others int
	for _, of := range product {
		err := filepath.WalkDir(filepath.Join(top, of), func(dir string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			r, err := readTexts(dir)
			for _, m := range r.errors {
				for _, fault := range errorFaults(m.text) {
					t.Errorf("%s: %q: %s", m.at, m.text, fault)
				}
			}
			for _, m := range r.helps {
				for _, fault := range helpFaults(m.text) {
					t.Errorf("%s: %q: %s", m.at, m.text, fault)
				}
			}
			for _, m := range r.others {
				for _, fault := range wordsIn(m.text, texts) {
					t.Errorf("%s: %q: %s", m.at, m.text, fault)
				}
			}
			errs, helps, others = errs+len(r.errors), helps+len(r.helps), others+len(r.others)
			return err
		})
		testbed.Must(t, err)
	}
	// A lint that reads no texts would find no faults.
	const leastErrors, leastHelps, leastOthers = 900, 60, 2000
	if errs < leastErrors || helps < leastHelps || others < leastOthers {
		t.Errorf("found %d errors, %d metrics and %d other texts, want at least %d, %d and %d", errs, helps, others, leastErrors, leastHelps, leastOthers)
	}
}

// textsOf are the texts of a package.
type textsOf struct {
	loggers
	errors, helps []message
	// others are all literals of two or more words, those of errors and metrics included.
	others []message
}

func readTexts(dir string) (*textsOf, error) {
	r := &textsOf{loggers: newLoggers()}
	err := r.read(dir, nil, r.noteText)
	return r, err
}

func (r *textsOf) noteText(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.BasicLit:
		if text, constant := r.text(n); constant && strings.Contains(text, " ") && !slices.Contains(othersTexts, text) {
			r.others = append(r.others, r.at(n, text))
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && slices.Contains(makesMetric, f.Name) {
			r.noteHelp(n.Args)
		}
		f, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		of, ok := f.X.(*ast.Ident)
		if !ok {
			return true
		}
		name := of.Name + "." + f.Sel.Name
		if name == "prometheus.NewDesc" {
			r.noteHelp(n.Args)
		}
		if at, makes := makesError[name]; makes && at < len(n.Args) {
			r.note(&r.errors, n.Args[at])
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "Help" || key.Name == "help") {
			r.note(&r.helps, n.Value)
		}
	}
	return true
}

// makesMetric are functions whose arguments include a metric's name, followed by its help.
var makesMetric = []string{"counter", "gauge", "number"}

var metricName = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)

// noteHelp adds the help of a metric, which follows its name.
func (r *textsOf) noteHelp(args []ast.Expr) {
	for i := 1; i < len(args); i++ {
		if name, constant := r.text(args[i-1]); constant && metricName.MatchString(name) {
			r.note(&r.helps, args[i])
		}
	}
}

// note adds a constant text. The literals in a text that varies are among the others.
func (r *textsOf) note(to *[]message, x ast.Expr) {
	if text, constant := r.text(x); constant {
		*to = append(*to, r.at(x, text))
	}
}

func (r *textsOf) at(x ast.Node, text string) message {
	return message{at: strings.TrimPrefix(r.files.Position(x.Pos()).String(), top+"/"), text: text}
}
