package testbed

import (
	"os"
	"path/filepath"
)

// CompanionsOfRunsc are the files that a release of gVisor has beside runsc, below dir.
func CompanionsOfRunsc(t T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "gvisor-bin", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no companions of runsc: %v", dir, err)
	}
	return files
}

// InstallRunsc puts a release, the part Runsc or RunscOther, into a directory, and returns
// the path of runsc there. Files are replaced as a package manager does.
func InstallRunsc(t T, part, dir string) string {
	t.Helper()
	from := filepath.Dir(Part(t, part))
	for _, file := range append(CompanionsOfRunsc(t, from), filepath.Join(from, Runsc)) {
		to := filepath.Join(dir, file[len(from):])
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to+".new", text, 0o755) //nolint:gosec // it is a program
		}
		if err == nil {
			err = os.Rename(to+".new", to)
		}
		Mustf(t, err, "install runsc")
	}
	return filepath.Join(dir, Runsc)
}
