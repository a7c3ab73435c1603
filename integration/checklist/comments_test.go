package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// see is a reference of a comment to something that is declared.
var see = regexp.MustCompile(`\(see ([A-Za-z_][\w.]*)\)`)

// Further references: to a file or directory of the repository, and to an exported name of one
// of its packages.
var (
	place     = regexp.MustCompile(`(?m)(?:^|[\s("'])((?:pkg|cmd|internal|contrib|integration|proto)/[\w/-]+(?:\.go)?)`)
	qualified = regexp.MustCompile(`\b([a-z][a-z0-9]+)\.([A-Z]\w*)\b`)
)

// A doc comment begins with the name that it stands over, and a comment refers to what is there.
func TestCommentsNameWhatIsThere(t *testing.T) {
	files, declared := token.NewFileSet(), map[string]bool{}
	var parsed []*ast.File
	for _, dir := range []string{"pkg", "cmd", "internal", "contrib"} {
		test.Must(t, filepath.WalkDir(filepath.Join(top, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			parsed = append(parsed, file)
			return err
		}))
	}
	packages := map[string]bool{}
	for _, file := range parsed {
		packages[file.Name.Name] = true
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				declared[id.Name] = true
			}
			return true
		})
	}
	for _, file := range parsed {
		for _, d := range file.Decls {
			name, doc := documented(d)
			if text := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(doc.Text(), "A "), "An "), "The "); text != "" && !regexp.MustCompile(`^`+name+`\b`).MatchString(text) {
				t.Errorf("%s: the comment of %s begins with %.40q", files.Position(d.Pos()), name, text)
			}
		}
		for _, group := range file.Comments {
			for _, m := range see.FindAllStringSubmatch(group.Text(), -1) {
				if _, last, _ := strings.Cut("."+m[1], "."); !declared[last[strings.LastIndex(last, ".")+1:]] {
					t.Errorf("%s: %s is not declared", files.Position(group.Pos()), m[1])
				}
			}
			for _, m := range qualified.FindAllStringSubmatch(group.Text(), -1) {
				if packages[m[1]] && !declared[m[2]] && !importsOther(file, m[1]) {
					t.Errorf("%s: %s is not declared", files.Position(group.Pos()), m[0])
				}
			}
			for _, m := range place.FindAllStringSubmatch(group.Text(), -1) {
				_, err := os.Stat(filepath.Join(top, m[1]))
				if _, cluster := os.Stat(filepath.Join(top, "contrib/cluster", m[1])); err != nil && cluster != nil {
					t.Errorf("%s: %s is not there", files.Position(group.Pos()), m[1])
				}
			}
		}
	}
}

// importsOther is whether a file imports a package of that name which is not of this repository.
func importsOther(file *ast.File, name string) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		path := strings.Trim(i.Path.Value, `"`)
		return filepath.Base(path) == name && !strings.HasPrefix(path, "github.com/berth-cri/berth/")
	})
}

// documented is the name that the comment of a declaration is about, and the comment; groups
// have comments of their own, and what every program has needs none.
func documented(d ast.Decl) (name string, doc *ast.CommentGroup) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.Name != "init" && d.Name.Name != "main" {
			return d.Name.Name, d.Doc
		}
	case *ast.GenDecl:
		if len(d.Specs) != 1 || d.Lparen.IsValid() {
			return "", nil
		}
		switch s := d.Specs[0].(type) {
		case *ast.TypeSpec:
			return s.Name.Name, d.Doc
		case *ast.ValueSpec:
			if len(s.Names) == 1 && s.Names[0].Name != "_" {
				return s.Names[0].Name, d.Doc
			}
		}
	}
	return "", nil
}
