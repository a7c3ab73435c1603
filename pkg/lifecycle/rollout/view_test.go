package rollout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

// on returns a Decision about the rollout of definition.
func on(s State, sha256 string) *Decision {
	return &Decision{State: s, Reason: "why", On: *definition().Candidate, SHA256: sha256}
}

func TestWhatPodsGet(t *testing.T) {
	plain := definition()
	plain.Candidate = nil
	larger := on(Aborted, "a")
	larger.On.Percent = 50
	good, bad := Probed{Known: true, SHA256: "a"}, Probed{Known: true, SHA256: "a", Failure: "no binary"}
	replaced := bad
	replaced.FailedSHA256 = "b"
	for name, c := range map[string]struct {
		view            View
		main, candidate string
		state           State
		reason          string
	}{
		"no Definition":                       {View{}, "", "", "", ""},
		"no candidate":                        {View{Definition: plain, Decision: on(Promoted, "a")}, "/old", "", "", ""},
		"running":                             {View{definition(), nil, good}, "/old", "/new", Running, ""},
		"not probed":                          {View{definition(), nil, Probed{}}, "/old", "", NotReady, NotProbedYet},
		"probe failed":                        {View{definition(), nil, bad}, "/old", "", NotReady, "no binary"},
		"promoted":                            {View{definition(), on(Promoted, "a"), good}, "/new", "", Promoted, "why"},
		"promoted, not probed":                {View{definition(), on(Promoted, "a"), Probed{}}, "/new", "", Promoted, "why"},
		"promoted, probe failed":              {View{definition(), on(Promoted, "a"), bad}, "/new", "", Promoted, "why"},
		"aborted":                             {View{definition(), on(Aborted, "a"), good}, "/old", "", Aborted, "why"},
		"aborted, checksum unknown":           {View{definition(), on(Aborted, ""), good}, "/old", "", Aborted, "why"},
		"aborted, then probe failed":          {View{definition(), on(Aborted, "a"), bad}, "/old", "", Aborted, "why"},
		"aborted, another program cannot run": {View{definition(), on(Aborted, "a"), replaced}, "/old", "", NotReady, "no binary"},
		"aborted, another program":            {View{definition(), on(Aborted, "b"), good}, "/old", "/new", Running, ""},
		"promoted, another program":           {View{definition(), on(Promoted, "b"), good}, "/old", "/new", Running, ""},
		"aborted, then a larger share":        {View{definition(), larger, good}, "/old", "/new", Running, ""},
	} {
		main, candidate := c.view.Routes()
		path := func(d *handler.Definition) string {
			if d == nil {
				return ""
			}
			return d.Path
		}
		if path(main) != c.main || path(candidate) != c.candidate {
			t.Errorf("%s: most pods run %q, a share runs %q", name, path(main), path(candidate))
		}
		switch s := c.view.Status(); {
		case s == nil && c.state == "":
		case s == nil || s.State != c.state || s.Reason != c.reason || s.Path != "/new" || s.Percent != 10:
			t.Errorf("%s: got %+v", name, s)
		}
	}
}

func TestWhoMayDecide(t *testing.T) {
	foreign, plain := definition(), definition()
	foreign.Type = handler.CRI
	plain.Candidate = nil
	for text, v := range map[string]View{
		"belongs to another daemon": {Definition: foreign},
		"has no rollout":            {Definition: plain},
		`handler "runc" has`:        {},
	} {
		test.Refused(t, v.decidable("runc"), errdefs.IsFailedPrecondition, text)
	}
	test.Check(t, known().decidable("runc"))
}

func TestDecisions(t *testing.T) {
	now := time.Now()
	plain, larger := known(), known()
	plain.Definition.Candidate = nil
	larger.Definition.Candidate.Percent = 50
	unprobed, unable := known(), known()
	unprobed.Probed, unable.Probed.Failure = Probed{}, "no binary"
	of := func(sha256 string) *key { return &key{sha256: sha256} }
	lost, stopped := known(), known()
	lost.Decision, stopped.Decision = on(Aborted, "a"), on(Aborted, "a")
	lost.Decision.ByItself, lost.Decision.Reason = true, "3 of 3 pods failed"
	for name, c := range map[string]struct {
		view  View
		state State
		of    *key
		err   string
	}{
		"promote after too many failures":      {lost, Promoted, nil, "was aborted: 3 of 3 pods failed"},
		"abort again after too many failures":  {lost, Aborted, nil, "was already aborted: 3 of 3 pods failed"},
		"promote after an operator's abort":    {stopped, Promoted, nil, ""},
		"promote":                              {known(), Promoted, nil, ""},
		"abort":                                {known(), Aborted, nil, ""},
		"promote an unprobed candidate":        {unprobed, Promoted, nil, "not ready: " + NotProbedYet},
		"promote a candidate that cannot run":  {unable, Promoted, nil, "no binary"},
		"abort an unprobed candidate":          {unprobed, Aborted, nil, ""},
		"abort a candidate that cannot run":    {unable, Aborted, nil, ""},
		"too many failures":                    {known(), Aborted, of("a"), ""},
		"too many failures, checksum unknown":  {known(), Aborted, of(""), ""},
		"too many failures of another program": {known(), Aborted, of("b"), "changed during this call"},
		"the candidate is gone":                {plain, Aborted, nil, "changed during this call"},
		"the candidate has another share":      {larger, Promoted, nil, "changed during this call"},
		"the Definition is gone":               {View{}, Aborted, nil, "changed during this call"},
	} {
		d, err := c.view.decide("runc", end{state: c.state, reason: "why", on: *definition().Candidate, of: c.of}, now)
		if c.err != "" {
			if d != nil || !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %+v, %v", name, d, err)
			}
			continue
		}
		want := Decision{State: c.state, Reason: "why", Since: now, On: *definition().Candidate, ByItself: c.of != nil, SHA256: c.view.Probed.SHA256}
		if err != nil || *d != want {
			t.Errorf("%s: got %+v, %v", name, d, err)
		}
	}
	if d, err := lost.decide("runc", end{state: Aborted, on: *definition().Candidate}, now); err != nil || d != lost.Decision {
		t.Errorf("abort again without a reason: got %+v, %v", d, err)
	}
}

func TestOutdated(t *testing.T) {
	views := map[string]View{}
	decisions := map[string]*Decision{"gone": on(Aborted, "a"), "away": on(Promoted, "a")}
	for name, v := range map[string]View{
		"holds":  {definition(), on(Aborted, "a"), Probed{Known: true, SHA256: "a"}},
		"other":  {definition(), on(Aborted, "b"), Probed{Known: true, SHA256: "a"}},
		"unsure": {definition(), on(Aborted, "b"), Probed{}},
	} {
		views[name], decisions[name] = v, v.Decision
	}
	view := func(name string) View { return views[name] }
	for unusable, want := range map[bool][]string{false: {"away", "gone", "other"}, true: {"other"}} {
		test.EqualLists(t, fmt.Sprintf("with unusable files: %v", unusable), Outdated(decisions, view, unusable), want)
	}
}

// TestFile checks the format of rollouts.json.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	f := File(dir)
	if all, err := f.Read(); err != nil || all == nil || len(all) > 0 {
		t.Errorf("without a file: %v, %v", all, err)
	}
	path := filepath.Join(dir, "rollouts.json")
	text := `{"format": 1, "handlers": {
		"runc": {"state": "aborted", "reason": "slow", "since": "2026-01-02T03:04:05Z", "by_itself": true, "sha256": "a",
			"on": {"path": "/new", "percent": 10}},
		"nothing": null, "strange": {"state": "running"}}}`
	test.Must(t, os.WriteFile(path, []byte(text), 0o600))
	want := Decision{
		State: Aborted, Reason: "slow", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), On: *definition().Candidate, ByItself: true, SHA256: "a",
	}
	for range 2 { // the second time, Read reads what Write wrote
		all, err := f.Read()
		if err != nil || len(all) != 1 || *all["runc"] != want {
			t.Errorf("got %+v, %v", all, err)
		}
		test.Must(t, f.Write(all))
	}
	for _, bad := range []string{"{", strings.Replace(text, `"format": 1`, `"format": 2`, 1), strings.Replace(text, `"format": 1, `, "", 1)} {
		test.Must(t, os.WriteFile(path, []byte(bad), 0o600))
		if all, err := f.Read(); err == nil || len(all) > 0 || all == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s is read: %v, %v", bad, all, err)
		}
	}
}
