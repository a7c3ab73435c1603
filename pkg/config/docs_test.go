package config

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

const keysPage = "../../docs/configuration.md"

// keysTable is a table of docs/configuration.md.
type keysTable struct {
	// name is in the marker above the table.
	name string
	// defaults is a struct with toml tags.
	defaults any
	// file is a configuration in which %s is replaced by a line that sets a key of the table.
	file string
}

func keysTables() []keysTable {
	all := []keysTable{{"top", *Default(), "%s"}}
	cfg := reflect.ValueOf(*Default())
	for i := range cfg.NumField() {
		if tag := cfg.Type().Field(i).Tag.Get("toml"); tag != "-" && cfg.Field(i).Kind() == reflect.Struct {
			all = append(all, keysTable{tag, cfg.Field(i).Interface(), "[" + tag + "]\n%s"})
		}
	}
	return append(all,
		keysTable{"snapshotters", Snapshotter{}, "[snapshotters.x]\n%s"},
		keysTable{"runtimes", defaultTable(), "[runtimes.x]\n%s"},
		keysTable{"candidate", handler.Candidate{}, "[runtimes.x.candidate]\n%s"},
		keysTable{"oci-options", handler.OCIOptions{}, "[runtimes.x]\nruntime_path = \"/runc\"\n[runtimes.x.options]\n%s"},
		keysTable{"runc-options", runcOptions{}, "[runtimes.x]\nruntime_path = \"/containerd-shim-runc-v2\"\n[runtimes.x.options]\n%s"})
}

// TestKeysPage writes the tables of the page from the comments, defaults and effects of the keys:
// go test ./pkg/config -run TestKeysPage -update. Without -update, it compares them.
func TestKeysPage(t *testing.T) {
	page := string(test.Value(os.ReadFile(keysPage))(t))
	comments, written := fieldComments(t), page
	tables := keysTables()
	for _, table := range tables {
		marker := regexp.MustCompile(`(?m)^<!--keys:` + regexp.QuoteMeta(table.name) + `-->\n\n(?:\|.*\n)*`)
		if n := len(marker.FindAllString(written, -1)); n != 1 {
			t.Errorf("the page has %d markers <!--keys:%s-->", n, table.name)
		}
		rows := table.rows(t, comments)
		written = marker.ReplaceAllStringFunc(written, func(string) string { return "<!--keys:" + table.name + "-->\n\n" + rows })
	}
	if n := strings.Count(page, "<!--keys:"); n != len(tables) {
		t.Errorf("the page has %d markers for %d tables", n, len(tables))
	}
	switch {
	case t.Failed() || written == page:
	case *update:
		test.Must(t, os.WriteFile(keysPage, []byte(written), 0o644))
	default:
		t.Error("docs/configuration.md is not up to date; run go test ./pkg/config -run TestKeysPage -update")
	}
}

// rows returns the table as Markdown. It omits the column "takes effect" if no key has an effect
// tag: keys of handlers apply to new pods, all others at the next start.
func (k keysTable) rows(t *testing.T, comments map[string]string) string {
	t.Helper()
	v := reflect.ValueOf(k.defaults)
	var rows []string
	always := true
	for _, name := range tomlfile.FieldsOf(v.Type()).Names {
		i := tomlfile.FieldsOf(v.Type()).Index[name]
		field, value := v.Type().FieldByIndex(i), v.FieldByIndex(i)
		if value.Kind() == reflect.Struct || value.Kind() == reflect.Pointer || tomlfile.IsTables(field.Type) {
			continue
		}
		owner := v.Type()
		if len(i) > 1 {
			owner = v.Type().FieldByIndex(i[:len(i)-1]).Type
		}
		effect, tagged := field.Tag.Lookup("effect")
		if tagged && (!slices.Contains([]string{"reload", "new pods", "start, new pods", "each pull"}, effect) || strings.Contains(k.file, "[runtimes.x")) {
			t.Errorf("%s.%s has the effect %q", owner.Name(), field.Name, effect)
		}
		always = always && !tagged
		rows = append(rows, "| `"+name+"` | `"+literal(value.Interface())+"`"+k.elements(t, name, value)+" | "+cmp.Or(effect, "start")+" | "+
			markdown(t, v.Type(), owner.Name()+"."+field.Name, comments)+" |\n")
	}
	if always {
		return "| key | default | |\n|---|---|---|\n" + strings.ReplaceAll(strings.Join(rows, ""), " | start | ", " | ")
	}
	return "| key | default | takes effect | |\n|---|---|---|---|\n" + strings.Join(rows, "")
}

// elements returns the type of an empty default if the value does not show it. A key is a path if
// Load refuses a relative one.
func (k keysTable) elements(t *testing.T, name string, v reflect.Value) string {
	t.Helper()
	text, path := `"relative"`, " path"
	switch {
	case v.Kind() == reflect.Slice && v.Len() == 0:
		text, path = `["relative"]`, " of paths"
	case v.Type() == reflect.TypeFor[map[string]string]():
		return " of strings"
	case v.Kind() != reflect.String || v.Len() > 0:
		return ""
	}
	n := newNode(t)
	n.write("config.toml", fmt.Sprintf(k.file, name+" = "+text))
	if _, err := Load(n.options()); err != nil && regexp.MustCompile(`"relative" must be (an|the) absolute path`).MatchString(err.Error()) {
		return path
	}
	return ""
}

// fieldComments returns the comments of fields by the names of struct and field.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	comments := map[string]string{}
	for _, file := range []string{"config.go", "runtimes.go", "options_table.go", "../handler/definition.go"} {
		parsed := test.Value(parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments))(t)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						for _, name := range f.Names {
							comments[spec.Name.Name+"."+name.Name] = f.Doc.Text()
						}
					}
				}
			}
			return true
		})
	}
	return comments
}

var (
	// marked matches identifiers, and all that the page shows as code or as a link.
	marked  = regexp.MustCompile("`[^`]*`" + `|\["[^\]]*"\]|"[^"]*"|'[^']'|docs/([\w-]+\.md)(?:#([a-z-]+))?|[A-Za-z][\w.]*\w`)
	tomlKey = regexp.MustCompile(`^[a-z]+(_[a-z]+)+$|^[a-z]+\.[a-z]+(_[a-z]+)*$`)
)

// markdown returns the first paragraph of a field's comment for the page: without the field's name,
// with keys in place of other fields, and with links.
func markdown(t *testing.T, keys reflect.Type, field string, comments map[string]string) string {
	t.Helper()
	_, name, _ := strings.Cut(field, ".")
	text, _, _ := strings.Cut(strings.TrimSpace(comments[field]), "\n\n")
	text, begins := strings.CutPrefix(strings.ReplaceAll(text, "\n", " "), name+" ")
	text, ends := strings.CutSuffix(text, ".")
	if !begins || !ends {
		t.Errorf("the comment of %s must begin with its name and end with a full stop: %q", field, comments[field])
		return ""
	}
	text = regexp.MustCompile(`^(is|are) (the )?`).ReplaceAllString(text, "")
	if !strings.HasPrefix(text, "docs/") {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	out, last := "", 0
	for _, m := range marked.FindAllStringSubmatchIndex(text, -1) {
		out += text[last:m[0]]
		last = m[1]
		found := text[m[0]:m[1]]
		of, isConfig := strings.CutPrefix(found, "Config.")
		f, isField := keys.FieldByName(found)
		switch {
		case m[4] >= 0:
			out += link(t, text[m[2]:m[3]], text[m[4]:m[5]], m[0] > 0)
		case m[2] >= 0:
			out += "[" + text[m[2]:m[3]] + "](" + text[m[2]:m[3]] + ")"
		case found[0] == '\'':
			out += "`" + found[1:2] + "`"
		case found[0] == '"' || found[0] == '[' || tomlKey.MatchString(found):
			out += "`" + found + "`"
		case isConfig:
			f, _ := reflect.TypeFor[Config]().FieldByName(of)
			out += "`" + f.Tag.Get("toml") + "`"
		case isField && f.Tag.Get("toml") != "" && m[0] > 0 && (!strings.HasSuffix(text[:m[0]], ". ") || regexp.MustCompile(`[a-z][A-Z]`).MatchString(found)):
			out += "`" + f.Tag.Get("toml") + "`"
		default:
			out += found
		}
	}
	return out + text[last:]
}

// link returns a link to a heading of the page; the text of the link is the heading.
func link(t *testing.T, page, anchor string, lower bool) string {
	t.Helper()
	text := string(test.Value(os.ReadFile("../../docs/" + page))(t))
	for _, m := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(text, -1) {
		if strings.ReplaceAll(strings.ToLower(m[1]), " ", "-") == anchor {
			words := m[1]
			if lower && !regexp.MustCompile(`^\S+[A-Z]`).MatchString(words) {
				words = strings.ToLower(words[:1]) + words[1:]
			}
			return "[" + words + "](" + strings.TrimPrefix(page, "configuration.md") + "#" + anchor + ")"
		}
	}
	t.Errorf("docs/%s has no heading %s", page, anchor)
	return ""
}

// TestDocumentedLimits checks numbers and names in the prose of docs/configuration.md.
func TestDocumentedLimits(t *testing.T) {
	data := test.Value(os.ReadFile("../../docs/configuration.md"))(t)
	for _, want := range []string{DefaultFile, DefaultVendorDir, hostfiles.SearchPathEnv, "at most 107 bytes",
		fmt.Sprintf("at most %d MiB, a directory at most %d files, and keys are at most %d levels deep",
			hostfiles.MaxFileSize>>20, hostfiles.MaxFiles, tomlfile.MaxDepth),
		fmt.Sprintf("All drop-ins together have at most %d MiB", hostfiles.MaxTotalSize>>20)} {
		if !strings.Contains(string(data), want) {
			t.Errorf("docs/configuration.md does not mention %s", want)
		}
	}
	for _, name := range ociRuntimes {
		if !strings.Contains(string(data), "`"+name+"`") {
			t.Errorf("docs/configuration.md does not say that %s is discovered", name)
		}
	}
}
