// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
)

// Adopt records that the operator allows metalplug to erase a disk and then offer it. The parameter target is the disk that
// the operator saw. If fingerprint is not empty, metalplug may erase only the content that it identifies. When Adopt returns
// nil, the record is on disk. If Adopt returns an error, such as [ErrUnknownDevice], nothing has changed.
func (i *Inventory) Adopt(ctx context.Context, id string, target *device.Target, scrub, fingerprint string) error {
	return changeDurably(ctx, i, func(l *loop) error {
		e := l.entries[id]
		switch {
		case e == nil:
			return fmt.Errorf("%s: %w", id, ErrUnknownDevice)
		case e.lease.Held() || e.sighting == nil || !e.sighting.Target.Alike(target):
			return fmt.Errorf("%s: the disk has changed in the meantime", id)
		}
		if err := l.apply(e, lease.Event{Name: lease.Adopted}); err != nil {
			return err
		}
		l.setEvidence(e, evidence.Evidence{
			Kind: evidence.Adopted, Scrub: scrub, Since: time.Now().UTC(), Of: l.evidence.Presence(e.Disk), Fingerprint: fingerprint,
		})
		return nil
	}, func(l *loop) {
		if e := l.entries[id]; e != nil {
			l.endEvidence(e, "it cannot be saved")
		}
	})
}
