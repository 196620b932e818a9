// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"
)

// A message that udevd sends to its listeners begins with struct monitor_netlink_header (systemd,
// src/libsystemd/sd-device/device-monitor.c). The offsets are relative to the start of the message. All numbers except the magic
// number are in native byte order.
const (
	prefix       = "libudev\x00"
	magic        = 0xfeedcafe
	offMagic     = 8
	offHead      = 12 // size of the head
	offProperty  = 16 // offset of the properties
	offLength    = 20 // length of the properties in bytes
	shortestHead = 24
)

// decode parses a message from udevd. The caller must set the field Received of the event.
func decode(message []byte) (Event, error) {
	text, err := payload(message)
	if err != nil {
		return Event{}, err
	}
	all := make(map[string]string)
	for field := range strings.SplitSeq(strings.TrimRight(text, "\x00"), "\x00") {
		key, value, ok := strings.Cut(field, "=")
		if !ok || key == "" {
			return Event{}, fmt.Errorf("decode udev message: %.60q is not a property", field)
		}
		all[key] = value
	}
	return newEvent(all)
}

// payload checks the sizes in a message's header and returns the part after the header.
func payload(message []byte) (string, error) {
	if len(message) < shortestHead || string(message[:len(prefix)]) != prefix {
		return "", errors.New("decode udev message: the message does not begin with libudev")
	}
	if got := binary.BigEndian.Uint32(message[offMagic:]); got != magic {
		return "", fmt.Errorf("decode udev message: magic number %#x, expected %#x", got, uint32(magic))
	}
	size := uint64(len(message))
	head := uint64(binary.NativeEndian.Uint32(message[offHead:]))
	begin := uint64(binary.NativeEndian.Uint32(message[offProperty:]))
	length := uint64(binary.NativeEndian.Uint32(message[offLength:]))
	if head < shortestHead || begin < head || begin+length > size {
		return "", fmt.Errorf("decode udev message: a header of %d bytes, and %d bytes at offset %d, do not fit into %d bytes", head, length, begin, size)
	}
	return string(message[begin : begin+length]), nil
}

// newEvent returns an event with the properties from a message.
func newEvent(all map[string]string) (Event, error) {
	old, moved := all["DEVPATH_OLD"]
	if all["ACTION"] == "" || all["SUBSYSTEM"] == "" || !isDevPath(all[devPath]) || moved && !isDevPath(old) {
		return Event{}, errors.New("decode udev message: no ACTION or SUBSYSTEM, or an invalid DEVPATH or DEVPATH_OLD")
	}
	return Event{Action: all["ACTION"], Device: NewDevice("/sys"+all[devPath], all)}, nil
}

// isDevPath reports whether a path stays below /sys when it is appended to "/sys".
func isDevPath(p string) bool { return len(p) > 1 && p[0] == '/' && path.Clean(p) == p }
