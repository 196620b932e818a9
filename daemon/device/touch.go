// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Touch has the functions for which a device's node must be opened. The daemon may not open it, so the helpers do. A function
// is nil where there is no hardware, as on a recording. All of them block until they have an answer or ctx ends, and are safe
// for concurrent use. Their work on a device has to end [AnswerTime] before ctx.
type Touch struct {
	// Probe returns what is on a disk, and its health as the disk reports it. It only reads. It neither reads nor claims a
	// disk that a pod holds, because the pod may be about to claim it. The error is [ErrInUse] where the host uses it, and
	// [ErrUnanswered] where there is no answer in time.
	Probe func(ctx context.Context, t Target, held bool) (Reading, error)
	// Survey reads a disk from a byte on, up to its end, the first block that holds something or the deadline of ctx, and
	// changes nothing. The error is as for Probe.
	Survey func(ctx context.Context, t Target, from int64) (Surveyed, error)
	// Prepare makes a device ready for its next container. It resets the device, then erases a disk or proves it blank. The
	// error is [ErrInUse] if another process uses the device, and [ErrForeign] if the disk holds anything that may not be
	// erased. With an error the disk is as it was.
	Prepare func(ctx context.Context, t Target, w Work) (Prepared, error)
	// Holders returns which processes have one of the nodes open, which are host paths.
	Holders func(ctx context.Context, nodes []string) ([]Holder, error)
}

// Print returns the fingerprint of what is on a disk. It is empty if the disk cannot be read, or if the quick check finds
// nothing there. The error is [ErrInUse]. It blocks for 20 s at most.
func (t Touch) Print(ctx context.Context, target Target) (string, error) {
	if t.Probe == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	reading, err := t.Probe(ctx, target, false)
	if errors.Is(err, ErrInUse) {
		return "", err
	}
	return reading.Fingerprint, nil
}

// AnswerTime is left for the answer of a helper. The helper notices with a delay that its time is up, and then reports its
// last step.
const AnswerTime = 4 * time.Second

// Target describes a device so that a helper finds it by itself and knows that it is the right one. With a nil Target a
// helper can do nothing to the device, and nothing is known of it.
type Target struct {
	Class    string
	SysPath  string
	Disk     bool        // its content can be read and erased
	Sole     bool        // only one at a time may have it open, be it a pod or a process of this host
	Identity []Attribute // that must have exactly these values
	// Auto is the right reset method for the device as it stands, or empty. The device survives it with its driver bound, and it
	// hits nothing else.
	Auto string
	// Siblings are the sysfs paths of the other disks that a reset hits.
	Siblings []string
	// Fingerprint is the [Reading].Fingerprint of what a pod has left on a disk, or empty.
	Fingerprint string
	// Written is the [Sighting].Written of a disk that is to be erased, from the time when its last pod had gone or the operator
	// allowed to erase it. If more was written since, it is not erased. nil: not known.
	Written  *uint64
	Offered  bool     // a probed disk would be offered with any content, and the probe only asks who has a claim on it
	Together []string // those of Siblings that no pod holds, for a reset
	Pods     []string // UIDs of the pods that have had it, as far as they are known
}

// IsDisk reports whether the target is a disk.
func (t *Target) IsDisk() bool { return t != nil && t.Disk }

// IsSole reports whether only one at a time may have it open.
func (t *Target) IsSole() bool { return t != nil && t.Sole }

// Alike reports whether both have the same identity.
func (t *Target) Alike(other *Target) bool { return slices.Equal(t.identity(), other.identity()) }

func (t *Target) identity() []Attribute {
	if t == nil {
		return nil
	}
	return t.Identity
}

// Appearance returns the number by which the kernel tells one appearance of a disk from the next, also of the same disk
// (diskseq, since Linux 5.15). The kernel counts from 1 in each boot. It is empty if it is not known.
func (t *Target) Appearance() string { return t.Attributes()["diskseq"] }

// Medium returns what identifies the disk itself, in any slot and machine. It is empty for a disk that is known by its name
// or place alone.
func (t *Target) Medium() string {
	all := t.Attributes()
	var parts []string
	for _, name := range []string{"wwid", "device/wwid", "device/serial"} {
		if value := all[name]; value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	return strings.Join(parts, " ")
}

// Attributes returns the identity by name, or nil.
func (t *Target) Attributes() map[string]string {
	if len(t.identity()) == 0 {
		return nil
	}
	all := make(map[string]string, len(t.Identity))
	for _, a := range t.Identity {
		all[a.Name] = a.Value
	}
	return all
}

// Attribute is the value of an attribute in sysfs, by its name below the path of a device, "wwid" or "device/serial".
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Holder is a process that has a node open, or all those of a pod that could not be read, which may have one open if the
// kubelet has given it to that pod.
type Holder struct {
	PID     int
	Command string // as in /proc/PID/comm
	Node    string // the host path that was asked for
	PodUID  string // of the pod that it belongs to, or empty for a process of this host
	Unread  string // why the processes of PodUID could not be read, or empty for a process that has Node open
}

// Reading is what a probe has found.
type Reading struct {
	Content string // what is on the disk, for people, such as "ext4", or empty
	// Fingerprint is by what the content is known again. A probe with this one in [Target] makes one that can be compared. It
	// is empty if nothing was read.
	Fingerprint string
	Size        int64 // of the disk in bytes, or 0 if it is not known
	Claimed     bool  // all that is known of the user is that the kernel refuses an exclusive open
	Smart       Smart
}

// Work is the task of one [Touch].Prepare.
type Work struct {
	Resource string // whose configuration permits the work, which the helper checks
	Method   string // how to reset the device first, or empty
	Scrub    string // how to erase the disk after that, or empty
	Tenant   bool   // what is on the disk was left by a pod of this node
	Blank    bool   // the disk must be blank
	ByHand   bool   // the operator has asked for it
}

// Prepared is the outcome of a [Touch].Prepare that went well.
type Prepared struct {
	Done   string // what was done and how it was verified, for people
	Erased bool   // the disk was erased, and that was verified
	// Appearance is the [Target.Appearance] of the disk afterwards, if it is proven to be the same medium. It is empty if it
	// is not, or if the kernel does not count disks.
	Appearance string
	Size       int64 // of the disk in bytes, or 0 if it is not known
}

// Surveyed is the outcome of a [Touch].Survey.
type Surveyed struct {
	Read    int64  // all bytes before this one are blank
	Size    int64  // of the disk
	Content string // what is at Read, for people, or empty
}

// Smart is the health that an NVMe controller reports (NVM Express Base Specification 2.0, 5.16.1.3, SMART / Health
// Information).
type Smart struct {
	Known       bool   `json:"known"`       // whether the controller reported it
	Warning     uint8  `json:"warning"`     // its critical warnings, one a bit
	Used        uint8  `json:"used"`        // percent of its life, which may exceed 100, at most 255
	Spare       uint8  `json:"spare"`       // percent of the spare blocks that are left
	Temperature int    `json:"temperature"` // degrees Celsius
	MediaErrors uint64 `json:"mediaErrors"` // pieces of data that could not be read back
}

// probeLimit bounds a probe. A disk that takes longer to give 48 MiB is not healthy.
const probeLimit = 20 * time.Second

// says returns what a disk reports of itself. If sick is set, it is why the disk must not be handed out, else what the
// operator should see to though the disk can be used. The bits are those of the NVM Express Base Specification 2.0, figure
// 207, as in nvme.h of libnvme.
func (s Smart) says(sick bool) string {
	var all []string
	for bit, says := range []struct {
		sick bool
		text string
	}{
		{false, fmt.Sprintf("SMART: %d %% of its spare blocks are left", s.Spare)},
		{false, fmt.Sprintf("SMART: its temperature is %d °C", s.Temperature)},
		{true, fmt.Sprintf("SMART: its reliability is degraded (%d media errors)", s.MediaErrors)},
		{true, "SMART: its media is read-only"},
		{true, "SMART: the backup of its volatile memory has failed"},
		{true, "SMART: its persistent memory region is unreliable"},
	} {
		if s.Warning&(1<<bit) != 0 && says.sick == sick {
			all = append(all, says.text)
		}
	}
	if s.Known && s.Used >= 100 && !sick {
		all = append(all, fmt.Sprintf("SMART: %d %% of its life is used", s.Used))
	}
	return strings.Join(all, "; ")
}

// aim notes the target, with the identity of the device that was identified and of no other. A device that takes its place
// later must differ from the target.
func (s *Sighting) aim(h *Host) {
	d := *s.Device
	if d.Class.Target == nil {
		return
	}
	target := d.Class.Target(h, d)
	if target.IsDisk() { // another disk may have come while the first was identified
		again, err := d.Class.Identify(h, *d.Udev)
		if err != nil || !slices.ContainsFunc(again, func(other Device) bool { return other.ID == d.ID }) {
			s.Offer = joined(s.Offer, incompletef("another disk has taken its place"))
			return
		}
	}
	s.Target = target
}

// probe adds to a sighting what only the helper that opens the node can find out. A disk that cannot be proven empty is not
// offered, unless it may be in use. It does not read a disk that a pod has, or that is kept back anyway. If a disk has data
// that will be erased, it asks who has a claim on the disk.
func (h *Host) probe(s *Sighting, mayBeUsed bool) {
	if h.Touch.Probe == nil || !s.Target.IsDisk() {
		return
	}
	n, target := h.Notes[s.Device.ID], *s.Target
	target.Fingerprint, target.Offered = n.Fingerprint, n.Erased && !n.Held
	known := s.Offer != nil && !n.Held
	if known && (!target.Offered && !n.Proven || !OnlyData(s.Offer)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	reading, err := h.Touch.Probe(ctx, target, n.Held)
	switch {
	case err != nil && mayBeUsed: // nothing has to be proven then
	case err != nil && !n.Held && errors.Is(err, ErrInUse):
		if reading.Claimed { // by a pod, or by what it built on top, while the disk is not cleared
			err = hostUse{err, false}
		}
		s.Offer = joined(s.Offer, err)
	case known && (err == nil || errors.Is(err, ErrUnanswered)): // that udev has found data is enough
	case err != nil && !n.Held:
		s.Offer = joined(s.Offer, incompletef("it cannot be proven empty: %w", err))
	case reading.Content != "":
		s.Offer = joined(s.Offer, dataf("%s is on it", reading.Content))
	}
	s.Unread = errors.Is(err, ErrUnanswered)
	if err == nil && !n.Held {
		s.Fingerprint, s.Asked, s.Blank, s.Size = reading.Fingerprint, target.Fingerprint, reading.Content == "", reading.Size
	}
	if sick := reading.Smart.says(true); sick != "" {
		s.Health = joined(s.Health, errors.New(sick))
	}
	s.warn(reading.Smart.says(false))
}
