// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// databaseSize is the maximum size of a device's record in udev's database, in bytes. Records are much smaller, because a kernel
// event is at most 2 KiB long (UEVENT_BUFFER_SIZE, include/linux/kobject.h).
const databaseSize = 64 << 10

// ReadKernel returns a device with the data that the kernel shows in sysfs. The parameter sys is the mount point of sysfs. If
// there is an error, only the device's path is set.
func ReadKernel(sys, sysPath string) (Device, error) {
	dir := sys + strings.TrimPrefix(sysPath, "/sys")
	text, err := fsutil.ReadRegular(dir+"/uevent", databaseSize)
	subsystem, err2 := os.Readlink(dir + "/subsystem")
	if err := cmp.Or(err, err2); err != nil {
		return Device{SysPath: sysPath}, fmt.Errorf("read device %s: %w", sysPath, err)
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			all[key] = value
		}
	}
	all["SUBSYSTEM"] = filepath.Base(subsystem)
	if driver, err := os.Readlink(dir + "/driver"); err == nil && all["DRIVER"] == "" {
		all["DRIVER"] = filepath.Base(driver)
	}
	return NewDevice(sysPath, all), nil
}

// ReadDevice returns a device as udev reports it, without using libudev. ReadDevice reads sysfs at the path sys, and udevd's
// database below the path run. If udevd has not yet processed the device, the device has only the kernel's properties. In
// systemd, device_update_db_handle and device_read_db_internal define a record's format (src/libsystemd/sd-device).
func ReadDevice(sys, run, sysPath string) (Device, error) {
	d, err := ReadKernel(sys, sysPath)
	if err != nil {
		return Device{}, err
	}
	all := maps.Collect(d.Properties.All())
	text, err := fsutil.ReadRegular(filepath.Join(run, "udev/data", recordName(d, all)), databaseSize)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Device{}, fmt.Errorf("read device %s: %w", sysPath, err)
	}
	addRecord(all, string(text))
	// Since systemd 251, a record contains the diskseq. While udevd is stopped, an earlier disk's record remains in the database.
	for _, link := range strings.Fields(all["DEVLINKS"]) {
		seq, ok := strings.CutPrefix(link, "/dev/disk/by-diskseq/")
		if ok && d.DevType == "disk" && seq != d.Properties.Value("DISKSEQ") {
			return Device{}, fmt.Errorf("read device %s: the record in udev's database describes an earlier disk", sysPath)
		}
	}
	d.Properties = NewProperties(all)
	return d, nil
}

// enumerate returns all devices of the buses and classes below sys, as [ReadDevice] reads them, sorted by path. libudev looks in the
// same directories (enumerator_scan_devices_all in systemd, src/libsystemd/sd-device). The error says which directory cannot be read.
func enumerate(sys, run string) ([]Device, error) {
	for _, dir := range []string{"/bus", "/class"} {
		if _, err := os.ReadDir(sys + dir); err != nil { // filepath.Glob ignores such an error
			return nil, fmt.Errorf("enumerate udev devices: %w", err)
		}
	}
	all := make(map[string]Device)
	buses, _ := filepath.Glob(sys + "/bus/*/devices/*")
	classes, _ := filepath.Glob(sys + "/class/*/*")
	for _, link := range slices.Concat(buses, classes) {
		path, _ := filepath.EvalSymlinks(link) // empty if the device has vanished
		if d, err := ReadDevice(sys, run, "/sys"+strings.TrimPrefix(path, sys)); err == nil {
			all[path] = d
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Device) int { return strings.Compare(a.SysPath, b.SysPath) }), nil
}

// recordName returns the name of a device's database record (device_get_device_id, sd-device).
func recordName(d Device, all map[string]string) string {
	switch {
	case all["MAJOR"] != "" && d.Subsystem == "block":
		return "b" + all["MAJOR"] + ":" + all["MINOR"]
	case all["MAJOR"] != "":
		return "c" + all["MAJOR"] + ":" + all["MINOR"]
	case all["IFINDEX"] != "":
		return "n" + all["IFINDEX"]
	}
	return "+" + d.Subsystem + ":" + filepath.Base(d.SysPath)
}

// addRecord adds the contents of a database record to the map "all". A line E:KEY=VALUE contains a property, and S:NAME a link
// below /dev. G:TAG contains a tag that the device has now or had earlier, and Q:TAG a tag that it has now.
func addRecord(all map[string]string, text string) {
	var links, tags, current []string
	for line := range strings.Lines(text) {
		kind, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if !ok || value == "" {
			continue
		}
		switch kind {
		case "E":
			if key, value, ok := strings.Cut(value, "="); ok {
				all[key] = value
			}
		case "S":
			links = append(links, "/dev/"+value)
		case "G":
			tags = append(tags, value)
		case "Q":
			current = append(current, value)
		}
	}
	set := func(key string, list []string, separator, around string) {
		if len(list) > 0 {
			all[key] = around + strings.Join(list, separator) + around
		}
	}
	set("DEVLINKS", links, " ", "")
	set("TAGS", tags, ":", ":")
	set("CURRENT_TAGS", current, ":", ":")
}
