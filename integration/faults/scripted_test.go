package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// scripted is a runtime, a script that runs runc. It records each subcommand except
// features, and can run lines of shell before a subcommand.
type scripted struct {
	// Path is the script, to be named in a configuration.
	Path string
	dir  string
}

const scriptedBody = `#!/bin/sh
dir=%q
verb=
skip=
for word; do
	if [ -n "$skip" ]; then skip=; continue; fi
	case $word in
	--root|--log|--log-format) skip=1 ;;
	-*) ;;
	*) verb=$word; break ;;
	esac
done
case $verb in
''|features) ;; # every runtime of a configuration is probed
*) echo "$verb" >>"$dir/calls" ;;
esac
if [ -e "$dir/on-$verb" ]; then . "$dir/on-$verb"; fi
exec %q "$@"
`

func newScripted(t *testing.T) *scripted {
	t.Helper()
	dir := t.TempDir()
	s := &scripted{Path: filepath.Join(dir, "runtime"), dir: dir}
	body := fmt.Sprintf(scriptedBody, dir, testbed.Part(t, testbed.Runc))
	put(t, s.Path, []byte(body))
	return s
}

// on has the script run lines of shell before a subcommand; runc is not run if the lines
// exit. An empty text removes the lines.
func (s *scripted) on(t *testing.T, verb, lines string) {
	t.Helper()
	path := filepath.Join(s.dir, "on-"+verb)
	err := os.Remove(path)
	if lines != "" {
		err = os.WriteFile(path, []byte(lines+"\n"), 0o600)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// calls returns the recorded subcommands, and forgets them.
func (s *scripted) calls(t *testing.T) string {
	t.Helper()
	path := filepath.Join(s.dir, "calls")
	body, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	_ = os.Remove(path)
	return strings.Join(strings.Fields(string(body)), " ")
}
