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

// Touch contains the functions that need to open a device's node. The daemon may not open nodes, so these functions call
// the helpers. The functions are nil if there is no real hardware, as with a recording. All functions block until they have
// an answer or ctx ends, and are safe for concurrent use. The work on a device must end [AnswerTime] before the deadline of
// ctx.
type Touch struct {
	// Probe returns the content of a disk, and the health that the disk reports. It writes nothing. If a pod holds the
	// disk, Probe neither reads it nor opens it exclusively, because doing so could disturb an exclusive open by the pod.
	// The error is [ErrInUse] if the host uses the disk, and [ErrUnanswered] if there is no answer in time.
	Probe func(ctx context.Context, t Target, held bool) (Report, error)
	// Survey reads a disk from an offset. It stops at the first block with data, at the end of the disk, or at the
	// deadline of ctx. It changes nothing. Its errors are those of Probe.
	Survey func(ctx context.Context, t Target, from int64) (Report, error)
	// Prepare makes a device ready for its next container. It resets the device, then erases a disk or verifies that the
	// disk is blank. The error is [ErrInUse] if another process uses the device, and [ErrForeign] if the disk contains
	// anything that must not be erased. After these errors, the disk is unchanged.
	Prepare func(ctx context.Context, t Target, w Work) (Report, error)
	// Holders returns the processes that have one of the nodes open. The nodes are host paths.
	Holders func(ctx context.Context, nodes []string) ([]Holder, error)
}

// Print returns the fingerprint of a disk's content. The fingerprint is empty if the disk cannot be read, or if the
// quick check finds no data. The only error is [ErrInUse]. Print blocks for at most 20 s.
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

// AnswerTime is the time that is reserved for the answer of a helper. A helper may notice late that its time is up, and
// must then still report its last step.
const AnswerTime = 4 * time.Second

// Target describes a device so that a helper can find and verify it. If a device has no target, helpers cannot work on it. A
// request to metalplug-reset includes the fields that have a name in JSON.
type Target struct {
	Class   string `json:"class"`
	SysPath string `json:"sysPath"` // "/sys/devices/…", without a link in any part
	Disk    bool   `json:"-"`       // the device has content that can be read and erased
	Sole    bool   `json:"-"`       // only one pod or process of this host may have the device open at a time
	// Identity lists attributes and the values that they must have. Surrounding blanks are ignored.
	Identity []Attribute `json:"identity,omitempty"`
	// Auto is the automatic reset method for the current state of the device, or empty. Such a reset keeps the driver bound,
	// and affects nothing else.
	Auto string `json:"-"`
	// Siblings are the sysfs paths of other disks that a reset affects.
	Siblings []string `json:"-"`
	// Fingerprint is the [Report].Fingerprint of the data that a pod left on a disk or that the operator adopted, or empty. A
	// helper refuses to erase other content, with [ErrForeign]. A probe reads the same places again, so that the fingerprints
	// can be compared.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Written is the [Sighting].Written of a disk at the time when its last pod ended or the operator allowed the erasure.
	// If more was written since then, the disk is not erased. Written is nil if unknown.
	Written *uint64 `json:"written,omitempty"`
	Offered bool    `json:"-"` // the disk is offered with any content, so a probe only checks for exclusive opens
	// Together lists the Siblings for a reset. No pod holds these disks. The helper checks each of them like the device
	// itself, and refuses the request if the list does not contain all affected disks.
	Together []string `json:"together,omitempty"`
	// Pods lists the known UIDs of the pods that have had the disk. A process of these pods that cannot be inspected may
	// have the disk open.
	Pods []string `json:"pods,omitempty"`
}

// IsDisk reports whether the target is a disk.
func (t *Target) IsDisk() bool { return t != nil && t.Disk }

// IsSole reports whether only one pod or process may have the target open at a time.
func (t *Target) IsSole() bool { return t != nil && t.Sole }

// Alike reports whether both targets have the same identity.
func (t *Target) Alike(other *Target) bool { return slices.Equal(t.identity(), other.identity()) }

func (t *Target) identity() []Attribute {
	if t == nil {
		return nil
	}
	return t.Identity
}

// Appearance returns the number that the kernel gives a disk when the disk appears (diskseq, since Linux 5.15). If the same
// disk appears again, it has a new number. The kernel counts from 1 after each boot. The result is empty if the number is
// unknown.
func (t *Target) Appearance() string { return t.Attributes()["diskseq"] }

// Medium returns the identity of the disk itself, which is the same in any slot and machine. It is empty for a disk that
// can be identified only by its name or location.
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

// Attributes returns the identity by attribute name, or nil.
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

// Attribute is the value of a sysfs attribute, with a name below the path of a device, such as "wwid" or
// "device/serial".
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Holder is a process that has a node open. It may also represent all processes of a pod that could not be inspected. Such
// a pod may have any node open that the kubelet has given it.
type Holder struct {
	PID     int
	Command string // name of the process in /proc/PID/comm
	Node    string // the requested host path
	PodUID  string // UID of the pod of the process, or empty for a process of this host
	Unread  string // why the processes of PodUID could not be inspected, or empty for a process that has Node open
}

// Report is the answer of a helper about a device.
type Report struct {
	// Content describes the data on the disk in words, for example "ext4". It is empty for a blank disk.
	Content string `json:"content,omitempty"`
	// Fingerprint identifies the content. A later probe with this fingerprint in its [Target] returns a fingerprint that
	// can be compared with it. Fingerprint is empty for a blank disk, and if the disk was not read.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Claimed means that the kernel refuses an exclusive open although nothing else shows that the disk is in use. Only a
	// probe reports it.
	Claimed bool   `json:"claimed,omitempty"`
	Smart   Smart  `json:"smart,omitzero"`   // only for a probe of an NVMe namespace
	Done    string `json:"done,omitempty"`   // only for [Touch].Prepare: a description of the work and its verification
	Size    int64  `json:"size,omitempty"`   // size of the disk in bytes, or 0 if unknown
	Read    int64  `json:"read,omitempty"`   // only for [Touch].Survey: all bytes before this offset are blank
	Erased  bool   `json:"erased,omitempty"` // [Touch].Prepare erased the disk and verified the erasure
	// Appearance is the [Target.Appearance] of the disk after [Touch].Prepare. It is empty if another medium may have replaced
	// the disk, or if the kernel does not number disks.
	Appearance string `json:"appearance,omitempty"`
}

// Work is the task for [Touch].Prepare, which resets a device before it erases anything.
type Work struct {
	Resource string `json:"resource,omitempty"` // the resource that must permit the work, which the helper checks
	// Method is the reset method, such as "nvme-controller", "dfl-port", "vfio" or "pci", or empty. "pci:flr" selects one
	// of the methods in the attribute reset_method.
	Method string `json:"method,omitempty"`
	Scrub  string `json:"scrub,omitempty"`  // the erase method, such as "discard", or empty; it requires Tenant or ByHand
	Tenant bool   `json:"tenant,omitempty"` // a pod on this node left the content of the disk
	Blank  bool   `json:"-"`                // the disk must be blank
	// ByHand means that the operator has ordered the work. The helper then also erases data that no pod wrote, and the
	// signatures of volume managers, RAID, LUKS, ZFS and Ceph.
	ByHand bool `json:"byHand,omitempty"`
}

// Smart is the health that an NVMe controller reports (NVM Express Base Specification 2.0, 5.16.1.3, SMART / Health
// Information).
type Smart struct {
	Known       bool   `json:"known"`       // whether the controller has reported its health
	Warning     uint8  `json:"warning"`     // critical warnings of the drive, as bits
	Used        uint8  `json:"used"`        // percentage of the drive's rated life that has been used, from 0 to 255
	Spare       uint8  `json:"spare"`       // percentage of spare blocks left
	Temperature int    `json:"temperature"` // degrees Celsius
	MediaErrors uint64 `json:"mediaErrors"` // number of data blocks that could not be recovered
}

// probeLimit is the maximum duration of a probe. A disk that needs more time for 48 MiB is not healthy.
const probeLimit = 20 * time.Second

// says returns the problems that a disk reports. If sick is true, these are the reasons why the disk is unhealthy.
// Otherwise, they are the problems of a disk that is still usable. The bits are those of the NVM Express Base Specification
// 2.0, figure 207, as in nvme.h of libnvme.
func (s Smart) says(sick bool) string {
	var all []string
	for bit, says := range []struct {
		sick bool
		text string
	}{
		{false, fmt.Sprintf("SMART: %d %% of the spare blocks are left", s.Spare)},
		{false, fmt.Sprintf("SMART: the temperature is %d °C", s.Temperature)},
		{true, fmt.Sprintf("SMART: the reliability is degraded (%d media errors)", s.MediaErrors)},
		{true, "SMART: the media are read-only"},
		{true, "SMART: the backup device of the volatile memory has failed"},
		{true, "SMART: the persistent memory region is unreliable"},
	} {
		if s.Warning&(1<<bit) != 0 && says.sick == sick {
			all = append(all, says.text)
		}
	}
	if s.Known && s.Used >= 100 && !sick {
		all = append(all, fmt.Sprintf("SMART: %d %% of the rated life is used", s.Used))
	}
	return strings.Join(all, "; ")
}

// aim records the target with the identity of the inspected device. A device that replaces this one later must not match
// the target.
func (s *Sighting) aim(h *Host) {
	d := *s.Device
	if d.Class.Target == nil {
		return
	}
	target := d.Class.Target(h, d)
	if target.IsDisk() { // another disk may have replaced this one during the identification
		again, err := d.Class.Identify(h, *d.Udev)
		if err != nil || !slices.ContainsFunc(again, func(other Device) bool { return other.ID == d.ID }) {
			s.Offer = joined(s.Offer, incompletef("it was replaced by another disk"))
			return
		}
	}
	s.Target = target
}

// probe adds the facts that only the helper can find out, because only the helper can open the node. A disk that is not
// proven blank is not offered, unless its resource allows disks in use. probe does not read a disk that a pod holds, or that
// metalplug withholds for another reason. If a disk will be erased before its next use, probe only checks for exclusive
// opens.
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
	case err != nil && mayBeUsed: // the resource allows disks in use, so the disk need not be blank
	case err != nil && !n.Held && errors.Is(err, ErrInUse):
		// Until the disk is erased, a pod may have the disk, or a device that the pod created on the disk, open
		// exclusively.
		if reading.Claimed {
			err = hostUse{err, false}
		}
		s.Offer = joined(s.Offer, err)
	case known && (err == nil || errors.Is(err, ErrUnanswered)): // data found by udev is sufficient
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
