// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"errors"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// probe reads a disk without changing anything. probe does not keep the disk open exclusively while it reads, because it must not
// disturb other processes. For example, if an operator runs "mkfs DISK && mount DISK", mkfs triggers a probe, which must not make
// mount fail.
func (t *task) probe(ctx context.Context) error {
	t.step.set("identifying %s", path.Base(t.SysPath))
	f, err := t.openDisk(t.SysPath, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.release()
	if t.IsNVMe(f.sysPath) { // this is possible even while the disk is in use
		d := drive{f}
		t.answer.Smart = d.smart()
		if s, err := d.sanitizing(); err == nil && s.status == sanitizeRunning {
			return errorf(Running, "a sanitize operation on %s is in progress (%d %%): nothing can be read", f.Name(), s.percent())
		}
	}
	if err := f.checkNotShared(); err != nil {
		return err
	}
	if err := t.checkUnused(f.Disk); err != nil || t.Do == Look {
		return err
	}
	if err := f.lock(ctx, unix.LOCK_SH); err != nil {
		return err
	}
	err = t.readContent(ctx, f)
	t.answer.Claimed = errors.Is(err, errClaimed)
	return err
}

// readContent reads an open disk. If the disk contains no data or the request is [Offer], readContent also briefly opens the disk
// exclusively. If this fails, another process has the disk open exclusively, and may have written to it.
func (t *task) readContent(ctx context.Context, f *diskFile) error {
	waiting, cancel := context.WithTimeout(ctx, exclusiveOpenLimit)
	defer cancel()
	for claimed := false; ; {
		err := t.readContentOnce(ctx, f)
		if err != nil || t.answer.Content != "" && t.Do != Offer {
			return err
		}
		err = t.checkExclusive(t.SysPath)
		switch {
		case errors.Is(err, errClaimed) && pause(waiting, 20*time.Millisecond):
			claimed = true
		case err == nil && claimed:
			claimed = false // the other process may have written to the disk, so read it again
		default:
			return err
		}
	}
}

// readContentOnce runs the quick check on an open disk and records a description of the content in the answer.
func (t *task) readContentOnce(ctx context.Context, f *diskFile) error {
	if err := t.checkIdentity(); err != nil {
		return err
	}
	a := &t.answer
	a.Content, a.Fingerprint, a.Size = "", "", f.size
	s, err := f.surfaceOf(ctx, f.seed(t.Fingerprint))
	if err != nil {
		return err
	}
	if err := s.checkReadable(); err != nil {
		return err
	}
	if a.Content, a.Fingerprint = s.content(), s.fingerprint(); a.Content == "" && len(f.Partitions(f.sysPath)) > 0 {
		a.Content = knownPartitions
	}
	return nil
}
