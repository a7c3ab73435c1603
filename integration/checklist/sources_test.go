package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/integration/conformance"
)

// sources are the tests of packages, by directory.
type sources map[string]*source

// source is the tests of one package.
type source struct {
	tests map[string]bool
	// texts are all string literals, which include the names of subtests.
	texts map[string]bool
}

// has returns an error unless the test of a proof exists.
func (s sources) has(p proof) error {
	dir, test := p.split()
	if strings.HasPrefix(string(p), conformanceSuite) {
		if !slices.Contains(conformance.Names(), test) {
			return errors.New("the suite has no such check")
		}
		return nil
	}
	if s[dir] == nil {
		read, err := readSource(filepath.Join(top, dir))
		if err != nil {
			return err
		}
		s[dir] = read
	}
	parts := strings.Split(test, "/")
	if !s[dir].tests[parts[0]] {
		return fmt.Errorf("%s has no such test", dir)
	}
	for _, part := range parts[1:] {
		if !s[dir].texts[part] {
			return fmt.Errorf("%s has no subtest named %q", dir, part)
		}
	}
	return nil
}

func readSource(dir string) (*source, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no tests", dir)
	}
	s := &source{tests: map[string]bool{}, texts: map[string]bool{}}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, s.note)
	}
	return s, nil
}

func (s *source) note(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.FuncDecl:
		if n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
			s.tests[n.Name.Name] = true
		}
	case *ast.BasicLit:
		if n.Kind == token.STRING {
			if text, err := strconv.Unquote(n.Value); err == nil {
				s.texts[text] = true
			}
		}
	}
	return true
}
