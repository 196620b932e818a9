// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"encoding/binary"
	"strings"
	"testing"
)

// Encode writes a message as udevd does, with a head of 40 bytes.
func Encode(properties ...string) []byte {
	body := strings.Join(properties, "\x00") + "\x00"
	message := make([]byte, 40, 40+len(body))
	copy(message, prefix)
	binary.BigEndian.PutUint32(message[offMagic:], magic)
	binary.NativeEndian.PutUint32(message[offHead:], 40)
	binary.NativeEndian.PutUint32(message[offProperty:], 40)
	binary.NativeEndian.PutUint32(message[offLength:], uint32(len(body)))
	return append(message, body...)
}

func patched(message []byte, offset int, value uint32) []byte {
	binary.NativeEndian.PutUint32(message[offset:], value)
	return message
}

func TestDecode(t *testing.T) {
	event, err := decode(Encode(
		"ACTION=add", "DEVPATH=/devices/x/nvme0n1", "SUBSYSTEM=block", "SEQNUM=4711", "DEVTYPE=disk",
		"DEVNAME=nvme0n1", "ID_MODEL=A=B", "EMPTY=",
	))
	if err != nil {
		t.Fatal(err)
	}
	d := event.Device
	if event.Action != "add" || d.Subsystem != "block" || d.DevType != "disk" ||
		d.SysPath != "/sys/devices/x/nvme0n1" || d.DevNode != "/dev/nvme0n1" {
		t.Errorf("event %+v", event)
	}
	want := map[string]string{
		"SUBSYSTEM": "block", "DEVTYPE": "disk",
		"DEVNAME": "/dev/nvme0n1", "ID_MODEL": "A=B", "EMPTY": "",
	}
	if d.Properties != NewProperties(want) {
		t.Errorf("properties %v, want %v", d.Properties, want)
	}
}

func TestDecodeErrors(t *testing.T) {
	good := func() []byte { return Encode("ACTION=add", "DEVPATH=/devices/x", "SUBSYSTEM=x") }
	for name, message := range map[string][]byte{
		"empty":               {},
		"short":               good()[:23],
		"kernel's":            []byte("add@/devices/x\x00ACTION=add\x00DEVPATH=/devices/x\x00SUBSYSTEM=x\x00"),
		"magic":               patched(good(), offMagic, 1),
		"huge head":           patched(good(), offHead, 1<<32-1),
		"offset beyond":       patched(good(), offProperty, 1<<32-1),
		"length beyond":       patched(good(), offLength, 1<<32-1),
		"length one too many": patched(good(), offLength, 45),
		"not a property":      Encode("ACTION=add", "DEVPATH=/devices/x", "SUBSYSTEM=x", "rubbish"),
		"no action":           Encode("DEVPATH=/devices/x", "SUBSYSTEM=x"),
		"no subsystem":        Encode("ACTION=add", "DEVPATH=/devices/x"),
		"no path":             Encode("ACTION=add", "SUBSYSTEM=x"),
		"path up":             Encode("ACTION=add", "DEVPATH=/../etc", "SUBSYSTEM=x"),
		"old path up":         Encode("ACTION=move", "DEVPATH=/devices/x", "DEVPATH_OLD=/..", "SUBSYSTEM=x"),
	} {
		t.Run(name, func(t *testing.T) {
			if event, err := decode(message); err == nil {
				t.Errorf("event %+v", event)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode("ACTION=add", "DEVPATH=/devices/x", "SUBSYSTEM=x", "SEQNUM=1", "DEVNAME=/dev/x"))
	f.Add(Encode("ACTION=move", "DEVPATH=/devices/x", "DEVPATH_OLD=/devices/y", "SUBSYSTEM=x"))
	f.Add(patched(Encode("ACTION=add", "DEVPATH=/devices/x", "SUBSYSTEM=x"), offLength, 1<<32-1))
	f.Add(patched(Encode("ACTION=add", "DEVPATH=/devices/x", "SUBSYSTEM=x"), offProperty, 1<<31))
	f.Add([]byte("add@/devices/x\x00ACTION=add\x00"))
	f.Fuzz(func(t *testing.T, message []byte) {
		event, err := decode(message)
		if err != nil {
			return
		}
		size := 0
		for key, value := range event.Device.Properties.All() {
			size += len(key) + len(value) + 1
		}
		if size > len(message) {
			t.Errorf("%d bytes of properties out of %d", size, len(message))
		}
		if !strings.HasPrefix(event.Device.SysPath, "/sys/") || event.Action == "" || event.Device.Subsystem == "" {
			t.Errorf("event %+v", event)
		}
	})
}
