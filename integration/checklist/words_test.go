package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// Kinds of text.
const (
	logs  = 1 << iota // messages of the log
	texts             // errors, help, and what else a command may print
	comments
	docs

	everywhere = logs | texts | comments | docs
)

// banned are words that a reader would have to learn, or that are not terms of the field.
var banned = []struct {
	in      int
	pattern *regexp.Regexp
	instead string
}{
	{everywhere, word(`canar(y|ies)`), "self-check pod"},
	{everywhere, word(`trials?|rulings?|next binar(y|ies)`), "rollout, candidate, decision"},
	{everywhere &^ comments, word(`variants?`), "candidate"}, // a platform has a variant
	{logs | docs, word(`judge[sd]?`), "decision"},
	{everywhere, word(`(take|takes|took|taken|taking) back`), "roll back"},
	{everywhere, word(`half[- ]made`), "partially created"},
	{everywhere, word(`bur(y|ies|ied|ying)`), "clean up"},
	{logs | docs, word(`sweeps?|swept|sweeping`), "clean up"},
	{everywhere &^ logs, word(`mend(s|ed|ing)?`), "correct, repair"},
	{everywhere, word(`stocks?`), "last known"},
	{everywhere, word(`(let|lets|letting) go`), "stop, remove, disconnect"},
	{everywhere, word(`abilit(y|ies)|surveys?`), "capability"},
	{everywhere, word(`blame[sd]?|blaming`), "attribute"},
	{everywhere, word(`sights?|glances?`), "freshness"},
	{everywhere, word(`flights?|lands?|landed`), "coalesce"},
	{everywhere, word(`last words?`), "exit record"},
	{everywhere, word(`to be had|way back|looked at`), "exist, restore, read"},
	{everywhere, word(`nobody|somebody( else)?`), "who that is"},
	{comments, word(`who|whom|whoever|whose`), "which; the caller"},
	{comments | docs, word(`says?|said|tells?|told`), "report, return, state"},
	{texts, word(`cannot be told|(does|do) not (say|tell)`), "cannot read, does not report"},
	{everywhere &^ comments, word(`(is|are) no|(is|are) none( of)?`), "is not a, does not exist, must be one of"},
	{everywhere &^ docs, word(`guests?`), "probe of the self-check pod, virtual machine"},
	{everywhere, word(`lanes?|tapes?|forsaken|insist(s|ed)?|excused?|portions?`), "queue, slot, record, require, ignore, part"},
	{everywhere, word(`what is none|says so|who has it|cannot be had`), "is not a, reports, cannot get"},
	{comments, word(`there is none`), "else nil; does not exist"},
	{texts, word(`tells? (who|whom|that|what|which)`), "reports"},
	{texts, word(`(may|can) not be`), "cannot be"},
	{texts | comments, word(`asked for`), "requested"},
	{logs, word(`lacks?|lacking`), "preflight, missing"},
	{logs, word(`end|ends|ended|ending`), "exit, stop, kill, finish"},
	{logs, word(`silent(ly)?|silence`), "unresponsive"},
	{logs, word(`cop(y|ies)`), "kept binary"},
}

// word returns a pattern for whole words, which may be on two lines.
func word(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`)
}

// wordsIn returns the banned words in a text of that kind.
func wordsIn(text string, kind int) []string {
	var all []string
	text = regexp.MustCompile(`\bno\s+(longer|more than)`).ReplaceAllString(text, "")
	for _, b := range banned {
		if found := b.pattern.FindString(text); found != "" && b.in&kind != 0 {
			all = append(all, fmt.Sprintf("%q: say %s", found, b.instead))
		}
	}
	return all
}

// code matches commands, files and output in a page.
var code = regexp.MustCompile("(?s)```.*?```|`[^`]*`")

func TestWordsOfDocs(t *testing.T) {
	for _, page := range append(pages(t), "contrib/verifier/README.md") {
		if page == "CHANGELOG.md" { // old entries are not rewritten
			continue
		}
		at := 1
		for paragraph := range strings.SplitSeq(code.ReplaceAllStringFunc(read(t, page), func(shown string) string {
			return strings.Repeat("\n", strings.Count(shown, "\n"))
		}), "\n\n") {
			for _, fault := range wordsIn(paragraph, docs) {
				t.Errorf("%s:%d: %s", page, at, fault)
			}
			at += strings.Count(paragraph, "\n") + 2
		}
	}
}

// TestWordsOfFiles checks the comments of files that are installed.
func TestWordsOfFiles(t *testing.T) {
	comment, found := regexp.MustCompile(`(?m)(?:^[ \t]*# .*\n)+`), 0
	for _, pattern := range []string{"configs/*.toml", "contrib/systemd/*", "contrib/prometheus/*"} {
		paths, err := filepath.Glob(filepath.Join(top, pattern))
		testbed.Must(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			testbed.Must(t, err)
			for _, m := range comment.FindAllString(string(text), -1) {
				found++
				for _, fault := range wordsIn(strings.ReplaceAll(m, "#", ""), comments) {
					t.Errorf("%s: %s: %s", path, fault, m)
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("found only %d comments", found)
	}
}
