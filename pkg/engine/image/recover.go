package image

import (
	"context"
)

// recover brings the store from what is on disk to a state that can serve: what
// killed pulls left is collected first, then memory is filled.
func (s *Store) recover(ctx context.Context) error {
	if err := s.files.dropLeases(ctx); err != nil {
		return err
	}
	if err := s.files.dropDownloads(); err != nil {
		return err
	}
	if err := s.catalog.load(ctx); err != nil {
		return err
	}
	if err := s.views.load(ctx); err != nil {
		return err
	}
	return s.measureStored(ctx)
}
