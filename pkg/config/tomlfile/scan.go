package tomlfile

import (
	"bytes"
	"slices"
	"sort"
	"strconv"

	"github.com/pelletier/go-toml/v2/unstable"
)

// scan walks the expressions of a file once, and records the origins of keys and the duplicates.
type scan struct {
	doc   *Document
	data  []byte
	lines []int
	// table is the path of the current header.
	table []string
	// duplicate is set if an earlier header is the same; from is the offset of the header's line.
	duplicate bool
	from      int
	// end is the offset after the last expression.
	end int
	// seen are the existing keys and headers, arrays the lengths of arrays of tables.
	seen   map[string]Origin
	arrays map[string]int
	// blank are the byte ranges of duplicates.
	blank [][2]int
	// tooDeep is set if the file has keys or values beyond MaxDepth.
	tooDeep bool
}

// run scans up to the first syntax error, which go-toml's decoder then reports.
func (s *scan) run() {
	var p unstable.Parser
	p.Reset(s.data)
	for !s.tooDeep && p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			s.header(e)
		case unstable.KeyValue:
			s.end = int(e.Raw.Offset + e.Raw.Length)
			if !s.duplicate {
				s.keyValue(e)
			}
		}
	}
	if p.Error() == nil {
		s.end = len(s.data)
	}
	s.closeTable(s.end)
}

func (s *scan) header(e *unstable.Node) {
	parts, offset := keyParts(e)
	if s.deep(parts, offset, 0) {
		return
	}
	start := s.lines[s.line(offset)]
	s.closeTable(start)
	s.from, s.end = start, s.lineEnd(offset)
	s.table = s.resolve(parts[:len(parts)-1])
	s.table = append(s.table, parts[len(parts)-1])
	if e.Kind == unstable.ArrayTable {
		s.note(s.table, offset)
		path := JoinKey(s.table...)
		n := s.arrays[path]
		s.arrays[path]++
		s.table = append(s.table, element(n))
		return
	}
	s.duplicate = s.twice("table ", s.table, offset)
	s.note(s.table, offset)
}

// closeTable ends the current table at an offset.
func (s *scan) closeTable(end int) {
	if s.duplicate {
		s.blank = append(s.blank, [2]int{s.from, end})
	}
	s.duplicate = false
}

// MaxDepth bounds the nesting of keys and values. Otherwise the cost could grow with the square of
// the file's size.
const MaxDepth = 32

// deep reports whether keys, or values below a key, exceed MaxDepth, and adds one Problem for the
// file.
func (s *scan) deep(path []string, offset, below int) bool {
	if len(path)+below <= MaxDepth {
		return false
	}
	if !s.tooDeep {
		s.doc.Problems = append(s.doc.Problems, Problem{
			Origin: s.origin(offset), Key: JoinKey(path[:min(len(path), 3)]...),
			Message: "is nested more than " + strconv.Itoa(MaxDepth) + " levels deep; no valid key is",
		})
	}
	s.tooDeep = true
	return true
}

// nested returns the depth of a value; for a depth above limit, any number above limit.
func nested(v *unstable.Node, limit int) int {
	if limit < 0 || v.Kind != unstable.InlineTable && v.Kind != unstable.Array {
		return 0
	}
	deepest := 0
	for it := v.Children(); it.Next(); {
		child, here := it.Node(), 1
		if child.Kind == unstable.KeyValue {
			parts, _ := keyParts(child)
			here = len(parts)
			child = child.Value()
		}
		deepest = max(deepest, here+nested(child, limit-here))
	}
	return deepest
}

// resolve replaces arrays of tables in a path by their last element.
func (s *scan) resolve(parts []string) []string {
	if len(s.arrays) == 0 {
		return slices.Clone(parts)
	}
	path := make([]string, 0, len(parts)+2)
	for _, p := range parts {
		path = append(path, p)
		if n := s.arrays[JoinKey(path...)]; n > 0 {
			path = append(path, element(n-1))
		}
	}
	return path
}

// element returns the path part for one table of an array. It equals no key, since an array of
// tables has no other parts directly below it.
func element(n int) string { return "#" + strconv.Itoa(n) }

func (s *scan) keyValue(e *unstable.Node) {
	parts, offset := keyParts(e)
	path := slices.Concat(s.table, parts)
	if s.deep(parts, offset, len(s.table)) || s.deep(path, offset, nested(e.Value(), MaxDepth)) {
		return
	}
	if s.twice("", path, offset) {
		s.blank = append(s.blank, [2]int{int(e.Raw.Offset), int(e.Raw.Offset + e.Raw.Length)})
		return
	}
	s.note(path, offset)
	s.inline(path, e.Value())
}

func (s *scan) inline(path []string, v *unstable.Node) {
	if v.Kind != unstable.InlineTable {
		return
	}
	for it := v.Children(); it.Next(); {
		n := it.Node()
		if n.Kind != unstable.KeyValue {
			continue
		}
		parts, offset := keyParts(n)
		sub := slices.Concat(path, parts)
		s.note(sub, offset)
		s.inline(sub, n.Value())
	}
}

// twice reports a key or header that has been seen before.
func (s *scan) twice(kind string, path []string, offset int) bool {
	id := kind + JoinKey(path...)
	first, dup := s.seen[id]
	if !dup {
		s.seen[id] = s.origin(offset)
		return false
	}
	s.doc.Problems = append(s.doc.Problems, Problem{
		Origin: s.origin(offset), Key: JoinKey(path...),
		Message: "is already set at line " + strconv.Itoa(first.Line) + "; keep one of the two",
	})
	return true
}

// note records the origin of a key, and of tables that it creates.
func (s *scan) note(path []string, offset int) {
	for n := len(path); n > 0; n-- {
		key := JoinKey(path[:n]...)
		if _, known := s.doc.Origins[key]; known {
			return
		}
		s.doc.Origins[key] = s.origin(offset)
	}
}

func (s *scan) origin(offset int) Origin {
	line := s.line(offset)
	return Origin{File: s.doc.File, Line: line + 1, Column: offset - s.lines[line] + 1}
}

func (s *scan) line(offset int) int {
	return sort.Search(len(s.lines), func(i int) bool { return s.lines[i] > offset }) - 1
}

func (s *scan) lineEnd(offset int) int {
	if next := s.line(offset) + 1; next < len(s.lines) {
		return s.lines[next]
	}
	return len(s.data)
}

// withoutDuplicates returns the file with duplicates overwritten by spaces, so that go-toml accepts
// it and reports correct positions.
func (s *scan) withoutDuplicates() []byte {
	if len(s.blank) == 0 {
		return s.data
	}
	out := bytes.Clone(s.data)
	for _, r := range s.blank {
		for i := r[0]; i < r[1]; i++ {
			if out[i] != '\n' && out[i] != '\r' {
				out[i] = ' '
			}
		}
	}
	return out
}

func lineStarts(data []byte) []int {
	starts := []int{0}
	for i, c := range data {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

// keyParts returns the parts of an expression's key and the offset of the first.
func keyParts(e *unstable.Node) (parts []string, offset int) {
	for it := e.Key(); it.Next(); {
		n := it.Node()
		if len(parts) == 0 {
			offset = int(n.Raw.Offset)
		}
		parts = append(parts, string(n.Data))
	}
	return parts, offset
}
