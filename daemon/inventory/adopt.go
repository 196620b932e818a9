// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
)

// Adopt notes that the operator allows to erase a disk that was seen as target, and to offer it after that. A fingerprint
// limits that to the content that was on the disk. The note is on disk when Adopt returns nil. With an error nothing has
// changed. The error may also be [ErrUnknownDevice].
func (i *Inventory) Adopt(ctx context.Context, id string, target *device.Target, scrub, fingerprint string) error {
	var refused error
	if err := i.ask(ctx, func(l *loop) {
		e := l.entries[id]
		switch {
		case e == nil:
			refused = fmt.Errorf("%s: %w", id, ErrUnknownDevice)
		case e.lease.Held() || e.sighting == nil || !e.sighting.Target.Alike(target):
			refused = fmt.Errorf("%s: it has changed in between", id)
		default:
			if refused = l.apply(e, lease.Event{Name: lease.Adopted}); refused != nil {
				return
			}
			l.setEvidence(e, Evidence{
				Kind: Adopted, Scrub: scrub, Since: time.Now().UTC(), Of: l.here(e), Fingerprint: fingerprint,
			})
		}
	}); err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	err := i.Kept(ctx)
	if err != nil {
		i.post(func(l *loop) {
			if e := l.entries[id]; e != nil {
				l.endEvidence(e, err.Error())
			}
		})
		return fmt.Errorf("%s: keep the adoption: %w", id, err)
	}
	return nil
}
