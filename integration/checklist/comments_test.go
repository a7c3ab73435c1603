package main

import (
	"cmp"
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

// Patterns for names in a comment: a file or directory of the repository, a member of a package or
// type, and an identifier, which is a word of mixed case or any word in parentheses.
var (
	place  = regexp.MustCompile(`(?m)(?:^|[\s("'])((?:pkg|cmd|internal|contrib|integration|proto)/[\w/-]+(?:\.go)?)`)
	member = regexp.MustCompile(`(?:^|[^\w."/-])([A-Za-z]\w*)\.(\w+)(?:\.(\w+))?\b`)
	name   = regexp.MustCompile(`\((?:see (?:\w+\.)*)?(\w*[a-z]\w*)\)|(?:^|[^\w."\\/-])([a-z]+[a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*)\b`)
)

// foreign are names of other programs that comments may have.
var foreign = strings.Fields(`
	PreferNoSchedule
	cAdvisor disableGC EventedPLEG generateName MurmurHash3 OpenTelemetry ReadFrom RefCount RunOrDie
	StrictModes Synchronize uid_t`)

// room is what the comments of a package may name: identifiers of its code, its declarations, and
// the fields and methods of its types. members also has each type, true if it embeds no other.
type room struct{ used, declared, members map[string]bool }

// house is the rooms of all packages by name, and all identifiers and all words of literals.
type house struct {
	rooms        map[string]*room
	used, quoted map[string]bool
}

// A doc comment begins with the name that it documents. A comment names only what exists, and has
// no banned word.
func TestCommentsNameWhatIsThere(t *testing.T) {
	files, parsed := token.NewFileSet(), []*ast.File{}
	all := house{map[string]*room{}, map[string]bool{}, allTests(t)}
	for _, word := range foreign {
		all.quoted[word] = true
	}
	for _, dir := range []string{"pkg", "cmd", "internal", "contrib"} {
		test.Must(t, filepath.WalkDir(filepath.Join(top, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err == nil {
				parsed = append(parsed, file)
				all.note(file)
			}
			return err
		}))
	}
	for _, file := range parsed {
		rest := map[*ast.CommentGroup]string{} // a doc comment after its name
		ast.Inspect(file, func(n ast.Node) bool {
			names, doc := documented(n)
			text := doc.Text()
			for _, id := range names {
				if m := regexp.MustCompile(`^(A |An |The )?` + id.Name + `\b`).FindString(text); m != "" {
					rest[doc] = text[len(m):]
				}
			}
			if text != "" && len(names) > 0 && rest[doc] == "" {
				t.Errorf("%s: the comment of %s begins with %.40q", files.Position(n.Pos()), names[0], text)
			}
			_, body := n.(*ast.BlockStmt)
			return !body
		})
		for _, group := range file.Comments {
			text := cmp.Or(rest[group], group.Text())
			for _, fault := range append(wordsIn(text, comments), all.missing(file, text)...) {
				t.Errorf("%s: %s", files.Position(group.Pos()), fault)
			}
		}
	}
}

// note adds the names of a file.
func (h *house) note(file *ast.File) {
	r := h.rooms[file.Name.Name]
	if r == nil {
		r = &room{map[string]bool{}, map[string]bool{}, map[string]bool{}}
		h.rooms[file.Name.Name] = r
	}
	for n := range ast.Preorder(file) {
		switch n := n.(type) {
		case *ast.Ident:
			h.used[n.Name], r.used[n.Name] = true, true
		case *ast.BasicLit:
			for _, word := range regexp.MustCompile(`[\w.]+`).FindAllString(n.Value, -1) {
				h.quoted[word] = true
				for part := range strings.SplitSeq(word, ".") {
					h.quoted[part] = true
				}
			}
		case *ast.FuncDecl:
			r.declared[n.Name.Name] = true
			if n.Recv != nil {
				r.members[first(n.Recv.List[0].Type)+"."+n.Name.Name] = true
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				r.declared[id.Name] = true
			}
		case *ast.TypeSpec:
			r.declared[n.Name.Name] = true
			r.fields(n)
		}
	}
}

// missing returns the names in a comment that do not exist.
func (h *house) missing(file *ast.File, text string) (faults []string) {
	r := h.rooms[file.Name.Name]
	for _, m := range name.FindAllStringSubmatch(text, -1) {
		word := m[1] + m[2]
		if there := word[0] < 'a' && h.used[word] || r.used[word] || h.quoted[word]; !there {
			faults = append(faults, word+" is not declared")
		}
	}
	for _, m := range member.FindAllStringSubmatch(text, -1) {
		of, typ, field := r, m[1], m[2]
		qualified := h.rooms[m[1]] != nil && m[2][0] < 'a' && !importsOther(file, m[1])
		if qualified {
			of, typ, field = h.rooms[m[1]], m[2], m[3]
		}
		if qualified && !of.declared[typ] ||
			of.members[typ] && field != "" && !of.members[typ+"."+field] && !h.quoted[typ+"."+field] ||
			!qualified && typ[0] < 'a' && !h.used[field] && !h.quoted[field] {
			faults = append(faults, strings.TrimLeft(m[0], " \n(")+" is not declared")
		}
	}
	for _, m := range place.FindAllStringSubmatch(text, -1) {
		_, err := os.Stat(filepath.Join(top, m[1]))
		if _, cluster := os.Stat(filepath.Join(top, "contrib/cluster", m[1])); err != nil && cluster != nil {
			faults = append(faults, m[1]+" does not exist")
		}
	}
	return faults
}

// fields adds the fields or methods of a type.
func (r *room) fields(of *ast.TypeSpec) {
	var list []*ast.Field
	switch x := of.Type.(type) {
	case *ast.StructType:
		list = x.Fields.List
	case *ast.InterfaceType:
		list = x.Methods.List
	default:
		return
	}
	r.members[of.Name.Name] = !slices.ContainsFunc(list, func(f *ast.Field) bool { return f.Names == nil })
	for _, field := range list {
		for _, id := range field.Names {
			r.members[of.Name.Name+"."+id.Name] = true
		}
	}
}

// first is the first identifier of an expression: the name of a receiver's type.
func first(x ast.Node) string {
	for n := range ast.Preorder(x) {
		if id, ok := n.(*ast.Ident); ok {
			return id.Name
		}
	}
	return ""
}

// importsOther is whether a file imports a package of that name from another repository.
func importsOther(file *ast.File, name string) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		path := strings.Trim(i.Path.Value, `"`)
		return filepath.Base(path) == name && !strings.HasPrefix(path, "github.com/berth-cri/berth/")
	})
}

// documented returns the names with which a declaration's comment has to begin, and the comment. It
// returns neither for init, main and groups of declarations.
func documented(n ast.Node) (names []*ast.Ident, doc *ast.CommentGroup) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Name.Name != "init" && n.Name.Name != "main" {
			return []*ast.Ident{n.Name}, n.Doc
		}
	case *ast.GenDecl:
		if len(n.Specs) == 1 && !n.Lparen.IsValid() {
			names, _ = documented(n.Specs[0])
			return names, n.Doc
		}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}, n.Doc
	case *ast.ValueSpec:
		if len(n.Names) == 1 && n.Names[0].Name != "_" {
			return n.Names, n.Doc
		}
	case *ast.Field:
		return n.Names, n.Doc
	}
	return nil, nil
}
