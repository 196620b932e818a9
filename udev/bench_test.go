// SPDX-License-Identifier: Apache-2.0

package udev

import "testing"

func BenchmarkDecode(b *testing.B) {
	message := encode("ACTION=add", "DEVPATH=/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1",
		"SUBSYSTEM=block", "SEQNUM=4711", "DEVNAME=/dev/nvme0n1", "DEVTYPE=disk", "MAJOR=259", "MINOR=0",
		"ID_SERIAL=Drive_S680", "ID_SERIAL_SHORT=S680", "ID_MODEL=Drive", "ID_PATH=pci-0000:01:00.0-nvme-1",
		"DEVLINKS=/dev/disk/by-id/nvme-Drive_S680 /dev/disk/by-path/pci-0000:01:00.0-nvme-1", "TAGS=:systemd:")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(message); err != nil {
			b.Fatal(err)
		}
	}
}
