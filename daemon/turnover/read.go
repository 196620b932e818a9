// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/verdict"
)

const (
	// sliceTime is how long the helper reads a disk in one request. During this time, the helper keeps the disk locked. The part
	// that it reads in one request is called a slice. After a restart, metalplugd continues after the last complete slice.
	sliceTime = 8 * time.Second
	// foundPause is how long the daemon waits after it has found data on a disk. The daemon then reads again from the same
	// offset, in case an operator has removed the data.
	foundPause = 10 * time.Minute
)

// errFound means that metalplug has read a disk and found data.
var errFound = errors.New("the disk holds data")

// read reads the next part of a disk that is not yet known to be blank. read returns [ErrBusy] while a pod uses another disk on
// the same controller.
func (j *job) read(ctx context.Context) error {
	id, from := j.Device.ID, j.Evidence
	if slices.ContainsFunc(j.Target.Siblings, func(path string) bool { other := j.offeredAt(path); return other != nil && other.Held() }) {
		return fmt.Errorf("%w: the read waits until a pod that uses the disk's controller has ended", ErrBusy)
	}
	limited, cancel := context.WithTimeout(ctx, sliceTime+device.AnswerTime)
	defer cancel()
	target := *j.Target
	target.Pods, _ = j.Pods()
	found, err := j.Host.Touch.Survey(limited, target, from.Read)
	switch {
	case err == nil && found.Content == "" && found.Read <= from.Read && found.Read < found.Size:
		err = errors.New("no progress")
		fallthrough
	case err != nil && (found.Read <= from.Read || found.Read == found.Size): // the last check of a full read failed
		if !errors.Is(err, device.ErrUnanswered) && !errors.Is(err, device.ErrInUse) {
			err = fmt.Errorf("%w; %s", err, verdict.Remedy(id, j.Target))
		}
		return fmt.Errorf("the read fails at byte %d: %w", from.Read, err)
	}
	j.Inventory.Surveyed(id, j.Target, from, found)
	switch now, err := j.Inventory.Current(ctx, id); {
	case err != nil:
		return err
	case found.Content != "":
		if from.Found == "" {
			j.note(j.Status, audit.Unproven, nil, audit.Entry{Verified: found.Content})
		}
		return errFound
	case now.Evidence.Kind == evidence.Blank:
		j.note(j.Status, audit.Proven, nil, audit.Entry{Verified: fmt.Sprintf("all %d bytes were read and are blank", found.Size)})
	}
	return nil
}

// askHolders is called for a disk that is about to be offered. askHolders checks that no process has the disk open. New evidence
// must be in the state file before the disk is offered. If metalplugd crashed without this record, its next run would refuse to
// start a container with the disk.
func (j *job) askHolders(ctx context.Context) error {
	err := j.checkUnused(ctx)
	if err == nil && j.Evidence.Asked == "" {
		if err = j.Inventory.WaitSaved(ctx); err != nil {
			err = fmt.Errorf("the evidence cannot be saved: %w", err)
		}
	}
	if err == nil {
		j.Inventory.RecordNoHolders(j.Device.ID, j.Target)
	}
	return err
}
