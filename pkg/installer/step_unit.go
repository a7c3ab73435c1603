package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// unit is the service.
type unit struct {
	root    nodefs.Root
	host    Host
	at      hook
	payload string
}

func (*unit) name() string { return unitStep }
func (*unit) alone() bool  { return false }

func (u *unit) input() string {
	text, err := u.text()
	return nodefs.Digest(fmt.Appendf(text, "%v", err))
}

// text is the unit as it is shipped, with the programs in their place.
func (u *unit) text() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(u.payload, "berth.service"))
	return bytes.ReplaceAll(text, []byte("/usr/bin/"), []byte(current+"/bin/")), err
}

func (u *unit) prepare(_ context.Context, before []byte) ([]byte, error) {
	var saved []nodefs.Original
	if before != nil {
		if err := json.Unmarshal(before, &saved); err != nil {
			return nil, err
		}
	}
	text, err := u.text()
	if err != nil {
		return nil, err
	}
	if saved, err = (nodefs.Set{Content: map[string][]byte{unitFile: text}}).Prepare(u.root, saved); err != nil {
		return nil, err
	}
	return json.Marshal(saved)
}

// holds implements lasting. An edit stays until the unit changes; that of another version does not.
func (u *unit) holds(_ context.Context, text []byte) error {
	var saved []nodefs.Original
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	wanted, err := u.text()
	if err != nil {
		return err
	}
	now, err := os.ReadFile(u.root.Path(unitFile))
	if err == nil && !bytes.Equal(now, wanted) && slices.Contains(saved[0].Ours, nodefs.Digest(now)) {
		err = fmt.Errorf("%s is of another version", unitFile)
	}
	return err
}

func (u *unit) do(ctx context.Context, before []byte) error {
	var saved []nodefs.Original
	if err := json.Unmarshal(before, &saved); err != nil {
		return err
	}
	text, err := u.text()
	if err != nil {
		return err
	}
	if err := u.root.Replace(saved[0], text); err != nil {
		return err
	}
	u.at("installer.unit.half")
	_, err = u.host.Run(ctx, "systemctl", "daemon-reload")
	return err
}

// wroteUnit says whether a unit is of this installer's, of whatever version.
func (j *journal) wroteUnit(text []byte) bool {
	e := j.entry(unitStep)
	var saved []nodefs.Original
	return e != nil && json.Unmarshal(e.Saved, &saved) == nil && len(saved) > 0 && slices.Contains(saved[0].Ours, nodefs.Digest(text))
}

func (u *unit) undo(ctx context.Context, text []byte) error {
	var saved []nodefs.Original
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if err := u.root.RestoreAll(saved); err != nil {
		return err
	}
	_, err := u.host.Run(ctx, "systemctl", "daemon-reload")
	return err
}
