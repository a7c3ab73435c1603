package image

import (
	"context"
)

// recover brings the store from what is on disk to a state that can serve: what
// killed pulls left is kept or collected first, then memory is filled.
func (s *Store) recover(ctx context.Context) error {
	if err := s.interrupted.recover(ctx); err != nil {
		return err
	}
	if err := s.files.dropLost(ctx); err != nil {
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
