//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Drive is an NVMe drive. It keeps its content while it is unplugged.
type Drive struct {
	Serial string // serial number, which identifies the drive in the tests
	// SizeMiB is fixed at the first insertion. The default is 64.
	SizeMiB int64
	// Namespaces is the number of namespaces of a drive that may have several controllers, like a drive with two ports. If
	// it is 0, the drive has one namespace and one controller. The kernel shows each of these namespaces as a multipath head
	// without a PCI parent. Such a drive must be present at boot, and cannot be plugged in again.
	Namespaces int
	// Controllers is the number of controllers through which these namespaces can be reached. The default is one.
	Controllers int
	// Medium is the name of the drive's image. The default is Serial. Two drives with the same serial number need different
	// media.
	Medium string
	// Slot is the slot of the drive. The default is any free slot.
	Slot string
	// KeepsDiscarded makes the drive acknowledge Deallocate and keep the data.
	KeepsDiscarded bool
}

// medium returns the name of the image of a drive without separate namespaces.
func (d Drive) medium() string { return cmp.Or(d.Medium, d.Serial) }

// discard returns QEMU's value for the handling of deallocated blocks.
func (d Drive) discard() string {
	if d.KeepsDiscarded {
		return "ignore"
	}
	return "unmap"
}

// Medium returns the image file of a drive on this host, and creates it if it is missing. The test must not write to the
// file while the drive is plugged in.
func (m *Machine) Medium(d Drive) string {
	m.t.Helper()
	file, err := m.file(d.medium(), d.SizeMiB)
	if err != nil {
		m.t.Fatal(err)
	}
	return file
}

// insert assigns a slot to a drive.
func (m *Machine) insert(d Drive) (slot string, err error) {
	var free []string
	for slot, serial := range m.slots {
		if serial == "" && cmp.Or(d.Slot, slot) == slot {
			free = append(free, slot)
		}
	}
	if len(free) == 0 {
		return "", fmt.Errorf("plug %s: no free slot", d.Serial)
	}
	slot = slices.Min(free)
	m.slots[slot] = d.Serial
	return slot, nil
}

// file returns the image file of a drive or namespace.
func (m *Machine) file(name string, sizeMiB int64) (string, error) {
	file := m.path("drive-" + name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = os.Truncate(file, cmp.Or(sizeMiB, 64)<<20)
	}
	if err != nil {
		return "", fmt.Errorf("make drive %s: %w", name, err)
	}
	return file, nil
}

// driveArguments returns QEMU's arguments for a drive that is present at boot.
func (m *Machine) driveArguments(d Drive) ([]string, error) {
	slot, err := m.insert(d)
	if err != nil {
		return nil, err
	}
	blockdev := func(name string) (string, error) {
		file, err := m.file(name, d.SizeMiB)
		return fmt.Sprintf("driver=raw,node-name=%s,file.driver=file,file.filename=%s,discard=%s", name, file, d.discard()), err
	}
	controller := fmt.Sprintf("nvme,id=nvme-%s,serial=%s,bus=%s", d.Serial, d.Serial, slot)
	if d.Namespaces == 0 {
		disk, err := blockdev(d.Serial)
		return []string{"-blockdev", disk, "-device", controller + ",drive=" + d.Serial}, err
	}
	args := []string{
		"-device", fmt.Sprintf("nvme-subsys,id=subsys-%s,nqn=%s", d.Serial, d.Serial),
		"-device", fmt.Sprintf("%s,subsys=subsys-%s", controller, d.Serial),
	}
	for c := 2; c <= d.Controllers; c++ {
		other := fmt.Sprintf("%s-%d", d.Serial, c)
		slot, err := m.insert(Drive{Serial: other})
		if err != nil {
			return nil, err
		}
		args = append(args, "-device", fmt.Sprintf("nvme,id=nvme-%s,serial=%s,bus=%s,subsys=subsys-%s", other, d.Serial, slot, d.Serial))
	}
	for n := 1; n <= d.Namespaces; n++ {
		name := fmt.Sprintf("%s-%d", d.Serial, n)
		disk, err := blockdev(name)
		if err != nil {
			return nil, err
		}
		args = append(args, "-blockdev", disk,
			"-device", fmt.Sprintf("nvme-ns,id=ns-%s,drive=%s,bus=nvme-%s,nsid=%d", name, name, d.Serial, n))
	}
	return args, nil
}

// Plug plugs drives into free slots of the running machine, one after the other. It returns when QEMU has plugged them
// in, which may be before the machine notices.
func (m *Machine) Plug(drives ...Drive) {
	m.t.Helper()
	for _, d := range drives {
		slot, err := m.insert(d)
		if err != nil {
			m.t.Fatal(err)
		}
		file, err := m.file(d.medium(), d.SizeMiB)
		if err != nil {
			m.t.Fatal(err)
		}
		err = m.qmp.Execute("blockdev-add", map[string]any{
			"driver": "raw", "node-name": d.Serial, "discard": d.discard(),
			"file": map[string]any{"driver": "file", "filename": file},
		}, nil)
		if err == nil {
			err = m.qmp.Execute("device_add", map[string]any{
				"driver": "nvme", "id": "nvme-" + d.Serial, "bus": slot,
				"drive": d.Serial, "serial": d.Serial,
			}, nil)
		}
		if err != nil {
			m.t.Fatalf("plug %s: %v", d.Serial, err)
		}
		m.hot = append(m.hot, d)
	}
}

// UnplugAll unplugs the drives that were plugged in since the boot.
func (m *Machine) UnplugAll() {
	m.t.Helper()
	m.Unplug(slices.Clone(m.hot)...)
}

// Unplug unplugs drives from the running machine and returns when they are gone. This may take some time, because the
// machine must release them.
func (m *Machine) Unplug(drives ...Drive) {
	m.t.Helper()
	from := m.qmp.mark()
	for _, d := range drives {
		if err := m.qmp.Execute("device_del", map[string]any{"id": "nvme-" + d.Serial}, nil); err != nil {
			m.t.Fatalf("unplug %s: %v", d.Serial, err)
		}
	}
	for _, d := range drives {
		device := fmt.Appendf(nil, `"device": "nvme-%s"`, d.Serial)
		_, err := m.qmp.await(from, m.slower*time.Minute, func(e Event) bool {
			return e.Name == "DEVICE_DELETED" && bytes.Contains(e.Data, device)
		})
		if err == nil && d.Namespaces == 0 {
			err = m.qmp.Execute("blockdev-del", map[string]any{"node-name": d.Serial}, nil)
		}
		if err != nil {
			m.t.Fatalf("unplug %s: %v", d.Serial, err)
		}
		m.hot = slices.DeleteFunc(m.hot, func(h Drive) bool { return h.Serial == d.Serial })
		for slot, serial := range m.slots {
			if serial == d.Serial {
				m.slots[slot] = ""
			}
		}
	}
}

// Warn sets or clears bits of a drive's SMART critical warning.
func (m *Machine) Warn(d Drive, bits int) {
	m.t.Helper()
	err := m.qmp.Execute("qom-set", map[string]any{
		"path": "/machine/peripheral/nvme-" + d.Serial, "property": "smart_critical_warning", "value": bits,
	}, nil)
	if err != nil {
		m.t.Fatalf("warn %s: %v", d.Serial, err)
	}
}

// Stall delays all reads of a drive except reads of its first part, like a stuck disk, until it is called with false. The
// drive still answers other commands.
func (m *Machine) Stall(d Drive, stall bool) {
	m.t.Helper()
	m.throttle(d, "bps_rd", stall)
}

// StallWrites delays all writes and formats of a drive, until it is called with false.
func (m *Machine) StallWrites(d Drive, stall bool) {
	m.t.Helper()
	m.throttle(d, "bps_wr", stall)
}

// throttle sets a limit of QEMU (qapi/block-core.json, BlockIOThrottle) to almost zero, or removes it.
func (m *Machine) throttle(d Drive, limit string, on bool) {
	m.t.Helper()
	limits := map[string]any{"id": "nvme-" + d.Serial, "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0}
	if on {
		limits[limit] = 1 // one operation in a second
	}
	if err := m.qmp.Execute("block_set_io_throttle", limits, nil); err != nil {
		m.t.Fatalf("stall %s: %v", d.Serial, err)
	}
}

// Namespaces returns the nodes of the machine's namespaces, such as /dev/nvme1n1. The key is the drive's serial number,
// followed by "/" and the namespace ID except for the first namespace. The kernel assigns the numbers in any order, so a
// test must not assume them.
func (m *Machine) Namespaces() map[string]string {
	m.t.Helper()
	nodes := make(map[string]string)
	out := m.Sh(`for d in /sys/class/block/nvme*; do [ ! -e $d/nsid ] || [ $(cat $d/hidden) = 1 ] ||
		echo $(cat $d/device/serial) $(cat $d/nsid) /dev/${d##*/}; done`)
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue // the drive vanished while the directory was listed
		}
		if f[1] != "1" {
			f[0] += "/" + f[1]
		}
		nodes[f[0]] = f[2]
	}
	return nodes
}
