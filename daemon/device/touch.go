// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Touch contains the functions that need access to a device's node. The daemon may not open nodes, so these functions call the
// helpers. If the hardware is simulated from a recording, the functions are nil. Each function blocks until it has an answer or
// ctx ends, and is safe for concurrent use. The work on a device must end [AnswerTime] before the deadline of ctx.
type Touch struct {
	// Probe returns a disk's content and the health that the disk reports. Probe writes nothing. If a pod holds the disk, Probe
	// neither reads the disk nor opens it exclusively, because the pod's own exclusive open could then fail. The error is [ErrInUse]
	// if the host uses the disk, and [ErrUnanswered] if the helper does not answer in time.
	Probe func(ctx context.Context, t Target, held bool) (Report, error)
	// Survey reads a disk from an offset. Survey stops at the first block with data, at the end of the disk, or at the deadline of
	// ctx. Survey changes nothing and returns the same errors as Probe.
	Survey func(ctx context.Context, t Target, from int64) (Report, error)
	// Prepare makes a device ready for its next container. Prepare first resets the device, and then erases the disk or verifies
	// that the disk is blank. The error is [ErrInUse] if another process uses the device, and [ErrForeign] if the disk contains data
	// that must not be erased. After ErrInUse, the disk is unchanged. After ErrForeign, metalplug may already have erased the disk,
	// and another process may have written to it since then.
	Prepare func(ctx context.Context, t Target, w Work) (Report, error)
	// Holders returns the processes that have one of the given nodes open. The nodes are paths on the host. If there is no answer,
	// Holders returns an error after at most 20 seconds.
	Holders func(ctx context.Context, nodes []string) ([]Holder, error)
}

// ReadFingerprint returns the fingerprint of a disk's content. The fingerprint is empty if the disk cannot be read. The only error
// is [ErrInUse]. ReadFingerprint blocks for at most 20 s.
func (t Touch) ReadFingerprint(ctx context.Context, target Target) (string, error) {
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

// LooksBlank reports whether a fingerprint belongs to a disk on which the quick check found no data. The disk may still contain
// data in blocks that the quick check does not read.
func LooksBlank(fingerprint string) bool {
	return strings.HasSuffix(fingerprint, ":"+strings.Repeat("0", 32))
}

// AnswerTime is the time reserved for a helper's answer. A helper may notice late that its time is up, and must still have time
// to report its last step.
const AnswerTime = 4 * time.Second

// Target describes a device so that a helper can find and verify it. Helpers cannot work on a device without a target. A request
// to metalplug-reset includes only the fields that have a JSON name.
type Target struct {
	Class   string `json:"class"`
	SysPath string `json:"sysPath"` // "/sys/devices/…", without a link in any part
	Disk    bool   `json:"-"`       // the device has content that can be read and erased
	Sole    bool   `json:"-"`       // only one pod, or one process on this host, may have the device open at a time
	// Identity maps names of the device's sysfs attributes to the values that they must have. A name, such as "wwid" or
	// "device/serial", is relative to the device's path. White space around a value is ignored.
	Identity map[string]string `json:"identity,omitempty"`
	// Auto is the automatic reset method for the device's current state, or empty. An automatic reset keeps the driver bound and
	// affects no other device.
	Auto string `json:"-"`
	// Siblings are the sysfs paths of other disks that a reset affects.
	Siblings []string `json:"-"`
	// Fingerprint is the [Report].Fingerprint of the data on the disk, or empty. A pod left this data, or the operator adopted
	// it. A helper refuses to erase other data and returns [ErrForeign]. A probe reads the same blocks again, so that the daemon
	// can compare the fingerprints.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Written is the value of [Sighting].Written when the last pod ended, or when the operator allowed the erasure. If more data has
	// been written since then, the disk is not erased. Written is nil if the value is unknown.
	Written *uint64 `json:"written,omitempty"`
	Offered bool    `json:"-"` // the disk is offered with any content; a probe also opens a disk with data exclusively
	// Together lists the disks that are reset together with this device, and that no pod holds. The helper checks each of these
	// disks in the same way as the device. The helper refuses the request if the list does not contain all affected disks.
	Together []string `json:"together,omitempty"`
	// Pods lists the known UIDs of the pods that have held the disk. If a process in one of these pods cannot be inspected, the
	// helper must assume that the process has the disk open.
	Pods []string `json:"pods,omitempty"`
}

// IsDisk reports whether the target is a disk.
func (t *Target) IsDisk() bool { return t != nil && t.Disk }

// IsSole reports whether only one pod or process may have the target open at a time.
func (t *Target) IsSole() bool { return t != nil && t.Sole }

// Alike reports whether t and the other target have the same identity.
func (t *Target) Alike(other *Target) bool { return maps.Equal(t.Attributes(), other.Attributes()) }

// Appearance returns the number that the kernel assigns to a disk when the disk appears (diskseq, since Linux 5.15). If the same
// disk reappears, it gets a new number. The kernel counts from 1 after each boot. The result is empty if the number is unknown.
func (t *Target) Appearance() string { return t.Attributes()["diskseq"] }

// Medium returns the identity of the disk itself, which is the same in any slot and machine. The result is empty for a disk that
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

// Attributes returns the identity, or nil if there is no target.
func (t *Target) Attributes() map[string]string {
	if t == nil {
		return nil
	}
	return t.Identity
}

// Holder is a process that has a node open, or stands for a pod whose processes could not be inspected. Such a pod may have any
// node open that the kubelet gave it.
type Holder struct {
	PID     int
	Command string // name of the process in /proc/PID/comm
	PodUID  string // UID of the pod that the process belongs to, or empty for a process on this host
	Unread  string // why the pod's processes could not be inspected, or empty for a process that has a node open
}

// Report is a helper's answer to a request about a device.
type Report struct {
	// Content describes the data on the disk in words, for example "ext4". Content is empty for a blank disk.
	Content string `json:"content,omitempty"`
	// Fingerprint identifies the content. A later probe with this fingerprint in its [Target] reads the same blocks, so that the two
	// fingerprints can be compared. Fingerprint is empty if the disk was not read.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Claimed means that the kernel refuses to open the disk exclusively, even though nothing else shows that the disk is in use.
	// Only a probe sets this field.
	Claimed bool   `json:"claimed,omitempty"`
	Smart   Smart  `json:"smart,omitzero"`   // only for a probe of an NVMe namespace
	Done    string `json:"done,omitempty"`   // describes the work and its verification; only for [Touch].Prepare
	Size    int64  `json:"size,omitempty"`   // size of the disk in bytes, or 0 if unknown
	Read    int64  `json:"read,omitempty"`   // all bytes before this offset are blank; only for [Touch].Survey
	Erased  bool   `json:"erased,omitempty"` // [Touch].Prepare erased the disk and verified the erasure
	// Written is the value of [Sighting].Written right after the erasure. The helper then still has the disk open exclusively.
	Written uint64 `json:"written,omitempty"`
	// Appearance is the [Target.Appearance] of the disk after [Touch].Prepare. Appearance is empty if the disk may have been
	// replaced, or if the kernel does not number disks.
	Appearance string `json:"appearance,omitempty"`
}

// Work is the task for [Touch].Prepare, which resets a device before it erases anything.
type Work struct {
	Resource string `json:"resource,omitempty"` // the helper checks that the configuration of this resource permits the work
	// Method is the reset method, such as "nvme-controller", "dfl-port", "vfio" or "pci", or empty. "pci:flr", for example, selects
	// the method "flr" from the PCI function's attribute reset_method.
	Method string `json:"method,omitempty"`
	Scrub  string `json:"scrub,omitempty"`  // erase method, such as "discard", or empty; an erasure requires Tenant or ByHand
	Tenant bool   `json:"tenant,omitempty"` // the disk's content was left by a pod on this node
	Blank  bool   `json:"-"`                // the disk must be blank
	// ByHand means that the operator has ordered the work. The helper then also erases data that no pod wrote, and the
	// signatures of volume managers, RAID, LUKS, ZFS and Ceph.
	ByHand bool `json:"byHand,omitempty"`
}

// Smart contains an NVMe controller's health information (NVM Express Base Specification 2.0, 5.16.1.3, SMART / Health
// Information).
type Smart struct {
	Known       bool   `json:"known"`       // whether the controller has reported its health
	Warning     uint8  `json:"warning"`     // the drive's critical warnings, as bits
	Used        uint8  `json:"used"`        // percentage of the drive's rated life that has been used, from 0 to 255
	Spare       uint8  `json:"spare"`       // percentage of spare blocks left
	Temperature int    `json:"temperature"` // degrees Celsius
	MediaErrors uint64 `json:"mediaErrors"` // number of data blocks that could not be recovered
}

// probeLimit is the maximum duration of a probe. A disk that needs more time to read 48 MiB is not healthy.
const probeLimit = 20 * time.Second

// problems describes the problems that a disk reports. If the parameter "unhealthy" is true, the text contains the problems that
// make a disk unhealthy, and otherwise those of a usable disk. The bits are those of the NVM Express Base Specification 2.0, figure
// 207, as in nvme.h of libnvme.
func (s Smart) problems(unhealthy bool) string {
	var all []string
	for bit, problem := range []struct {
		unhealthy bool
		text      string
	}{
		{false, fmt.Sprintf("SMART: %d %% of the spare blocks are left", s.Spare)},
		{false, fmt.Sprintf("SMART: the temperature is %d °C", s.Temperature)},
		{true, fmt.Sprintf("SMART: the reliability is degraded (%d media errors)", s.MediaErrors)},
		{true, "SMART: the media are read-only"},
		{true, "SMART: the backup device of the volatile memory has failed"},
		{true, "SMART: the persistent memory region is unreliable"},
	} {
		if s.Warning&(1<<bit) != 0 && problem.unhealthy == unhealthy {
			all = append(all, problem.text)
		}
	}
	if s.Known && s.Used >= 100 && !unhealthy {
		all = append(all, fmt.Sprintf("SMART: %d %% of the rated life is used", s.Used))
	}
	return strings.Join(all, "; ")
}

// setTarget records the target of the inspected device. The target contains the device's identity, so that a replacement device
// does not match the target.
func (s *Sighting) setTarget(h *Host) {
	d := *s.Device
	if d.Class.Target == nil {
		return
	}
	target := d.Class.Target(h, d)
	if target.IsDisk() { // during the identification, another disk may have replaced this one
		again, err := d.Class.Identify(h, *d.Udev)
		if err != nil || !slices.ContainsFunc(again, func(other Device) bool { return other.ID == d.ID }) {
			s.Offer = joinErrors(s.Offer, incompletef("the disk was replaced by another disk"))
			return
		}
	}
	s.Target = target
}

// probe adds the facts that only metalplug-reset can find, because only this helper can open the node. A disk that is not proven
// blank is offered only if its resource allows disks in use. The helper does not read a disk that a pod holds, or that is not
// offered for another reason. If a disk will be erased before its next use, the helper also tries to open a disk with data
// exclusively.
func (h *Host) probe(s *Sighting, mayBeUsed bool) {
	if h.Touch.Probe == nil || !s.Target.IsDisk() {
		return
	}
	n, target := h.Notes[s.Device.LocatedID()], *s.Target
	if n.SysPath != s.Device.SysPath { // the disk is known by the ID without its location
		n = h.Notes[s.Device.ID]
	}
	target.Fingerprint, target.Offered = n.Fingerprint, n.Erased
	known := s.Offer != nil && !n.Held
	if known && (!target.Offered && !n.Forced || !OnlyData(s.Offer)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	reading, err := h.Touch.Probe(ctx, target, n.Held)
	switch {
	case err != nil && mayBeUsed: // the resource allows disks in use, so the disk need not be blank
	case err != nil && !n.Held && errors.Is(err, ErrInUse):
		s.Offer, s.claimed = joinErrors(s.Offer, err), reading.Claimed
	case known && (err == nil || errors.Is(err, ErrUnanswered)): // the data that udev found is reason enough
	case err != nil && !n.Held:
		s.Offer = joinErrors(s.Offer, incompletef("metalplug cannot prove that the disk is empty: %w", err))
	case reading.Content != "":
		s.Offer = joinErrors(s.Offer, dataf("the disk contains %s", reading.Content))
	}
	s.Unread = errors.Is(err, ErrUnanswered)
	if err == nil && !n.Held {
		s.Fingerprint, s.Asked, s.Blank, s.Size = reading.Fingerprint, target.Fingerprint, reading.Content == "", reading.Size
	}
	if problems := reading.Smart.problems(true); problems != "" {
		s.Health = joinErrors(s.Health, errors.New(problems))
	}
	s.warn(reading.Smart.problems(false))
}

// identity returns the given attributes that exist and are not empty. These attributes form a target's identity.
func (h *Host) identity(sysPath string, names ...string) map[string]string {
	all := make(map[string]string)
	for _, name := range names {
		if value, err := h.Attr(sysPath, name); err == nil && value != "" {
			all[name] = value
		}
	}
	return all
}

// nvmeTarget returns the target for a namespace. The identity includes the controller's serial number, because the ID of a
// namespace that reports no identifier is derived from this number. The identity also includes the diskseq, which increases each
// time a disk appears (Documentation/ABI/testing/sysfs-block). Resetting the controller briefly stops all of its namespaces. The
// reset is therefore automatic only if the controller has a single namespace.
func nvmeTarget(h *Host, d Device) *Target {
	t := &Target{Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true, Identity: h.identity(d.SysPath, "wwid", "diskseq", "device/serial")}
	controllers, only := h.NVMeControllers(d.SysPath), true
	for _, c := range controllers {
		disks, without := h.NVMeNamespaces(c)
		t.Siblings = append(t.Siblings, slices.DeleteFunc(disks, func(disk string) bool { return disk == d.SysPath })...)
		only = only && len(without) == 0
	}
	slices.Sort(t.Siblings)
	if t.Siblings = slices.Compact(t.Siblings); only && len(controllers) == 1 && len(t.Siblings) == 0 {
		t.Auto = "nvme-controller"
	}
	return t
}

// portTarget returns the target for an FPGA port. A reset keeps the port's driver bound and affects no other port.
func portTarget(h *Host, d Device) *Target {
	if h.Link(d.SysPath, "driver") != "dfl-port" {
		return nil
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Auto: "dfl-port", Identity: h.identity(d.SysPath, "dev", "id")}
}

// functionTarget returns the target for a PCI function. The identity consists of the function's PCI IDs and the ID that the
// hardware reports, if any.
func functionTarget(h *Host, d Device) *Target {
	return &Target{
		Class: d.Class.Name, SysPath: d.SysPath,
		Identity: h.identity(d.SysPath, "unique_id", "node_guid", "vendor", "device", "subsystem_vendor", "subsystem_device"),
	}
}

// nodeTarget returns the target for a device of class node if it is a disk, or a VFIO group or device. nodeTarget returns nil for
// any other device, such as a partition.
func nodeTarget(h *Host, d Device) *Target {
	switch {
	case d.group != nil:
		return nil
	case d.Udev.Subsystem == "vfio", d.Udev.Subsystem == "vfio-dev":
		return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Auto: nodeAuto(h, d), Identity: h.identity(d.SysPath, "dev")}
	case d.Udev.Subsystem != "block", h.IsPartition(d.SysPath):
		return nil
	}
	known := []string{"diskseq", "wwid", "device/wwid", "device/serial", "dev"}
	if sysfs.Removable(&h.Tree, d.SysPath) { // the other attributes identify the drive, whose medium can be replaced
		known = []string{"diskseq", "dev"}
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true, Identity: h.identity(d.SysPath, known...)}
}
