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

// Touch is what takes a device's node to be opened, which the daemon may not do: the helpers do it. A function that is
// nil cannot be had, as on a recording, where there is nothing to touch. All of them block until they have an answer or
// ctx ends, and are safe for concurrent use. What they do to a device has to be over [AnswerTime] before ctx ends.
type Touch struct {
	// Probe tells what is on a disk and how the disk says it is, by reading only. Of a disk that a pod holds nothing is
	// read, nor is it claimed: the pod may be about to. The error is [ErrInUse] where the host uses it, and
	// [ErrUnanswered] where there is no answer in time.
	Probe func(ctx context.Context, t Target, held bool) (Reading, error)
	// Survey reads a disk from a byte on, up to its end, the first block that holds something or the deadline of ctx, and
	// changes nothing. The error is as for Probe.
	Survey func(ctx context.Context, t Target, from int64) (Surveyed, error)
	// Prepare does to a device whatever precedes its next container. It resets the device, then erases a disk or proves
	// it blank. The error is [ErrInUse] if another process uses the device, and [ErrForeign] if the disk holds anything
	// that may not be erased; then the disk is as it was.
	Prepare func(ctx context.Context, t Target, w Work) (Prepared, error)
	// Holders tells which processes have one of the nodes open, of host paths.
	Holders func(ctx context.Context, nodes []string) ([]Holder, error)
}

// Print returns the fingerprint of what is on a disk; empty: it cannot be read, or the quick check finds nothing there. The error
// is [ErrInUse]. It blocks for 20 s at most.
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

// AnswerTime is left for the answer of a helper: it notices with a delay that its time is up, and then says what it was
// at.
const AnswerTime = 4 * time.Second

// Target is a device as a helper can find it by itself, and know that it is the one that is meant. Nil is none: there is
// nothing that a helper could do, and nothing is known of it.
type Target struct {
	Class    string
	SysPath  string
	Disk     bool        // it is one: what is on it can be read and erased
	Sole     bool        // only one at a time may have it open, be it a pod or a process of this host
	Identity []Attribute // that must read just so
	// Fingerprint is the [Reading].Fingerprint of what a pod has left on a disk; empty: not known.
	Fingerprint string
	Offered     bool     // a probed disk would be offered whatever is on it: who has a claim on it is asked all the same
	Together    []string // sysfs paths of further devices that a reset of it hits
	Pods        []string // UIDs of the pods that have had it, as far as they are known
}

// IsDisk tells whether it is one.
func (t *Target) IsDisk() bool { return t != nil && t.Disk }

// IsSole tells whether only one at a time may have it open.
func (t *Target) IsSole() bool { return t != nil && t.Sole }

// Alike tells whether both are known by the same.
func (t *Target) Alike(other *Target) bool { return slices.Equal(t.identity(), other.identity()) }

func (t *Target) identity() []Attribute {
	if t == nil {
		return nil
	}
	return t.Identity
}

// Appearance returns the number by which the kernel tells one appearance of a disk from the next, also of the same disk
// (diskseq, since Linux 5.15; it starts anew with each boot). Empty: it is not known.
func (t *Target) Appearance() string {
	for _, a := range t.identity() {
		if a.Name == "diskseq" {
			return a.Value
		}
	}
	return ""
}

// Medium returns what identifies the disk itself, in whatever slot or machine it is; empty: nothing does, as for a disk
// that is known by its name or place alone.
func (t *Target) Medium() string {
	var parts []string
	for _, a := range t.identity() {
		if slices.Contains([]string{"wwid", "device/wwid", "device/serial"}, a.Name) {
			parts = append(parts, a.Name+"="+a.Value)
		}
	}
	return strings.Join(parts, " ")
}

// Attributes returns the identity by name; nil if there is none.
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

// Attribute is the value of an attribute in sysfs, by its name below the path of a device: "wwid", "device/serial".
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
	PodUID  string // of the pod that it belongs to; empty: it is a process of this host
	Unread  string // why the processes of PodUID could not be read; empty: it is a process that has Node open
}

// Reading is what a probe has found.
type Reading struct {
	Content string // what is on the disk, for people: "ext4"; empty: nothing
	// Fingerprint is by what the content is known again. A probe with this one in [Target] makes one that can be compared.
	// Empty: nothing was read.
	Fingerprint string
	Size        int64 // of the disk, in bytes; 0: not known
	Claimed     bool  // the error is all that is known of who uses it: the kernel opens it for nobody else
	Smart       Smart
}

// Work is the task of one [Touch].Prepare.
type Work struct {
	Resource string // whose configuration permits the work; the helper checks that
	Method   string // how to reset the device first; empty: not at all
	Scrub    string // how to erase the disk after that; empty: not at all
	Tenant   bool   // what is on the disk was left by a pod of this node
	Blank    bool   // the disk must be blank
	ByHand   bool   // the operator has asked for it
}

// Prepared is the outcome of a [Touch].Prepare that went well.
type Prepared struct {
	Done   string // what was done and how it was verified, for people
	Erased bool   // the disk was erased, and that was verified
	// Appearance is the [Target.Appearance] of the disk afterwards, if it is proven to be the same medium; empty: it is
	// not, or the kernel does not count disks.
	Appearance string
	Size       int64 // of the disk, in bytes; 0: not known
}

// Surveyed is the outcome of a [Touch].Survey.
type Surveyed struct {
	Read    int64  // all bytes before this one are blank
	Size    int64  // of the disk
	Content string // what is at Read, for people; empty: nothing was found
}

// Smart is how an NVMe controller says it is (NVM Express Base Specification 2.0, 5.16.1.3, SMART / Health Information).
type Smart struct {
	Known       bool   `json:"known"`       // whether it has told
	Warning     uint8  `json:"warning"`     // its critical warnings, one a bit
	Used        uint8  `json:"used"`        // percent of its life; may exceed 100, 255 is the highest
	Spare       uint8  `json:"spare"`       // percent of the spare blocks that are left
	Temperature int    `json:"temperature"` // degrees Celsius
	MediaErrors uint64 `json:"mediaErrors"` // pieces of data that could not be read back
}

// probeLimit bounds a probe: a disk that takes longer to give two megabytes is not well.
const probeLimit = 20 * time.Second

// says returns what a disk says of itself: why it must not be handed out if sick is set, else what the operator should see
// to though the disk can be used. The bits are those of the NVM Express Base Specification 2.0, figure 207; nvme.h of libnvme
// has the same.
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

// aim notes the target, with the identity of the device that was identified and of no other: one that takes its place
// between this look and what is done to it must be known by it.
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

// probe adds to a sighting what only whoever opens the node can tell. A disk that cannot be proven empty is not
// offered, unless it may be in use. What a pod has, or what is kept back anyway, is not read; of a disk with data that
// will be erased it is asked who has a claim on it.
func (h *Host) probe(s *Sighting, mayBeUsed bool) {
	held := h.Holds != nil && h.Holds(s.Device.ID)
	if h.Touch.Probe == nil || !s.Target.IsDisk() {
		return
	}
	target, known := *s.Target, !held && s.Offer != nil
	target.Offered = !held && h.Erases != nil && h.Erases(s.Device.ID)
	if h.Fingerprint != nil {
		target.Fingerprint = h.Fingerprint(s.Device.ID)
	}
	proven := h.Proven != nil && h.Proven(s.Device.ID)
	if known && (!target.Offered && !proven || !OnlyData(s.Offer)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	reading, err := h.Touch.Probe(ctx, target, held)
	switch {
	case err != nil && mayBeUsed: // then nothing has to be proven
	case err != nil && !held && errors.Is(err, ErrInUse):
		s.Offer = joined(s.Offer, claimedUse(err, reading.Claimed))
	case known && (err == nil || errors.Is(err, ErrUnanswered)): // that udev has found data is enough
	case err != nil && !held:
		s.Offer = joined(s.Offer, incompletef("it cannot be proven empty: %w", err))
	case reading.Content != "":
		s.Offer = joined(s.Offer, dataf("%s is on it", reading.Content))
	}
	s.Unread = errors.Is(err, ErrUnanswered)
	if err == nil && !held {
		s.Fingerprint, s.Asked, s.Blank, s.Size = reading.Fingerprint, target.Fingerprint, reading.Content == "", reading.Size
	}
	if sick := reading.Smart.says(true); sick != "" {
		s.Health = joined(s.Health, errors.New(sick))
	}
	s.warn(reading.Smart.says(false))
}

// claimedUse makes the host's use of a claim. While the disk is not cleared it may be a pod's, as what is built on top
// may be.
func claimedUse(err error, claimed bool) error {
	if claimed {
		return hostUse{err, false}
	}
	return err
}
