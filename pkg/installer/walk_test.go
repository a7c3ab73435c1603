package installer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/installer/kubelet"
)

// walker is a node to which things happen by chance. Its berth starts only if it could.
type walker struct {
	*node
	*rand.Rand
	wanted Wanted
	// told is what has happened, for whoever reads a failure.
	told []string
	// inTheWay is what keeps a file from being written, gone says that somebody has removed one.
	inTheWay string
	gone     bool
}

func (w *walker) tell(format string, args ...any) {
	w.told = append(w.told, fmt.Sprintf(format, args...))
}

func (w *walker) oneOf(all ...string) string { return all[w.IntN(len(all))] }

func (w *walker) has(path string) bool {
	_, err := os.Lstat(filepath.Join(w.root, path))
	return err == nil
}

// starts says whether berth would. The unit of the first version is not that of later ones.
func (w *walker) starts() bool {
	link, err := os.Readlink(filepath.Join(w.root, current))
	_, noProgram := os.Stat(filepath.Join(w.root, program))
	return err == nil && noProgram == nil && link != w.broken && w.has(configFile) && w.has(unitFile) &&
		(link != "1.0.0" || !strings.Contains(w.read(unitFile), "--new-flag"))
}

// Run implements Host.
func (w *walker) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if strings.Join(args, " ") == "restart berth.service" {
		if w.running["berth"] = false; !w.starts() {
			return nil, exited(1)
		}
	}
	return w.node.Run(ctx, name, args...)
}

// Serves implements Cluster, without patience.
func (w *walker) Serves(ctx context.Context, berth bool) error {
	if err := w.node.Serves(ctx, berth); err != nil {
		return fmt.Errorf("%w: %w", err, ErrFinal)
	}
	return nil
}

func (w *walker) boot() {
	w.running["berth"] = w.has(wants) && w.starts()
	w.endpoint = w.kubeletEndpoint()
	w.running["rescue"] = w.has(units + "/timers.target.wants/" + rescueTimer)
}

// installer does as it is told at the place that comes so many places later.
func (w *walker) installer(places int, do func(place string)) *Installer {
	i := w.node.installer("")
	i.Host, i.Cluster, i.patience = w, w, 0
	i.at = func(place string) {
		if places--; places == 0 {
			do(place)
		}
	}
	return i
}

// values are some for the next installation, with a payload of their version.
func (w *walker) values() Wanted {
	v := w.wanted
	v.Version = w.oneOf("1.0.0", "1.1.0", "1.2.0")
	v.Config = w.oneOf("", "[metrics]\naddress = \"a\"", "[metrics]\naddress = \"b\"")
	v.Kubelet = w.IntN(6) != 0
	if w.IntN(4) == 0 {
		v.Endpoint = w.others[0]
	}
	if w.IntN(3) == 0 {
		v.Runtimes = v.Runtimes[:1]
	}
	flag := ""
	if v.Version != "1.0.0" {
		flag = " --new-flag"
	}
	writeFile(w.t, filepath.Join(w.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve"+flag+"\n", 0o644)
	return v
}

// run has an installer work that is killed or ended on the way, or cannot write a file from then on.
func (w *walker) run(what string, do func(context.Context, *Installer) error) {
	ctx, end := context.WithCancel(w.t.Context())
	defer end()
	how := w.IntN(3)
	i := w.installer(1+w.IntN(35), func(place string) {
		switch how {
		case 0:
			w.tell("ended at %s", place)
			end()
		case 1:
			w.tell("killed at %s", place)
			panic(interrupted(place))
		default:
			w.inTheWay = w.oneOf("/etc/berth/conf.d/.90-installer.toml.new", "/etc/berth/.config.toml.new", filepath.Dir(journalFile)+"/.journal.json.new",
				units+"/.berth.service.new", "/opt/berth/.current.new", units+"/."+rescueTimer+".new", "/var/lib/kubelet/.config.yaml.new")
			w.tell("from %s on, %s is in the way", place, w.inTheWay)
			w.write(w.inTheWay+"/x", "")
		}
	})
	err := errors.New("killed")
	killed(func() { err = do(ctx, i) })
	w.tell("%s: %v", what, err)
	w.gone = w.gone && err != nil
}

// step is one thing that happens.
func (w *walker) step() {
	if w.inTheWay != "" {
		os.RemoveAll(filepath.Join(w.root, w.inTheWay))
		os.Remove(filepath.Join(w.root, filepath.Dir(w.inTheWay)))
		w.inTheWay = ""
	}
	pods := filepath.Join(w.root, recordsOfPods, "abc")
	switch led := w.endpoint == ours; w.IntN(12) {
	case 0, 1, 2:
		v := w.values()
		w.tell("install %s, %q, to %q, %d runtimes", v.Version, v.Config, v.Endpoint, len(v.Runtimes))
		w.run("install", func(ctx context.Context, i *Installer) error { return i.Install(ctx, v) })
	case 3:
		w.run("uninstall", func(ctx context.Context, i *Installer) error { return i.Uninstall(ctx) })
	case 4:
		w.run("rescue", func(ctx context.Context, i *Installer) error { return i.Rescue(ctx) })
	case 5, 6:
		if !w.gone {
			w.tell("boot")
			w.boot()
		}
	case 7:
		if led && w.running["berth"] {
			w.tell("a pod comes")
			w.pod("abc", "crun")
		}
	case 8, 9:
		w.tell("it is gone")
		os.RemoveAll(pods)
	case 10:
		if led {
			w.tell("the kubelet is led elsewhere")
			for _, path := range []string{kubelet.Config, "/var/lib/kubelet/kubeadm-flags.env"} {
				w.write(path, strings.ReplaceAll(w.read(path), ours, theirs))
			}
			w.endpoint = theirs
		}
	case 11:
		if led {
			path := w.oneOf(configFile, unitFile, extraFile, program, "/opt/berth/1.0.0/bin/berth", current)
			w.tell("%s is removed", path)
			w.gone = os.Remove(filepath.Join(w.root, path)) == nil || w.gone
		}
	}
}

// rescued says whether the node has a runtime, or gets one by its timer.
func (w *walker) rescued() error {
	if w.endpoint != ours || w.running["berth"] || w.gone {
		return nil
	}
	if !w.running["rescue"] {
		return errors.New("the kubelet has no runtime, and no rescue")
	}
	err := w.installer(0, nil).Rescue(w.t.Context())
	w.tell("rescue by the timer: %v", err)
	if w.endpoint == ours && !w.running["berth"] {
		return errors.New("the kubelet has no runtime after the rescue")
	}
	return nil
}

// TestWalk has installations, removals and rescues be killed, ended and kept from writing, with
// boots, pods and people between: the node has a runtime all the time, can be installed in the
// end, and is as it was after that.
func TestWalk(t *testing.T) {
	files := func(tree string) string {
		return strings.Join(slices.DeleteFunc(strings.Split(tree, "\n"), func(line string) bool { return strings.Contains(line, " drwx") }), "\n")
	}
	for seed := range uint64(120) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			n.broken, n.others = "1.2.0", []string{"unix:///run/other/containerd.sock"}
			w := &walker{node: n, Rand: rand.New(rand.NewPCG(seed, 0)), wanted: n.wanted()}
			before := files(n.tree())
			for range 12 {
				w.step()
				if err := w.rescued(); err != nil {
					t.Fatalf("%v\n%s", err, strings.Join(w.told, "\n"))
				}
			}
			n.broken = ""
			os.RemoveAll(filepath.Join(n.root, recordsOfPods, "abc"))
			os.RemoveAll(filepath.Join(n.root, w.inTheWay, "x"))
			if w.inTheWay != "" {
				os.Remove(filepath.Join(n.root, w.inTheWay))
			}
			v := w.values()
			w.tell("in the end %s, %q", v.Version, v.Config)
			if err := w.installer(0, nil).Install(t.Context(), v); err != nil || n.version != v.Version || n.running["rescue"] || n.started != n.read(extraFile) ||
				strings.Contains(n.read(extraFile), "no such file") != (v.Config == "") || strings.Contains(n.read(unitFile), "--new-flag") != (v.Version != "1.0.0") {
				t.Fatalf("%v: berth %s runs with %q by %q; the rescue is left: %t\n%s", err, n.version, n.started, n.read(unitFile), n.running["rescue"], strings.Join(w.told, "\n"))
			}
			if err := w.installer(0, nil).Uninstall(t.Context()); err != nil || n.running["rescue"] || n.running["berth"] || n.endpoint != theirs || files(n.tree()) != before {
				t.Fatalf("%v: berth runs: %t; the rescue is left: %t; the kubelet uses %s\n%s\n%s", err, n.running["berth"], n.running["rescue"], n.endpoint, strings.Join(w.told, "\n"), n.tree())
			}
		})
	}
}
