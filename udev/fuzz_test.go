// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"strings"
	"testing"
)

// FuzzMounts: what is used is a name in /dev or a number, and each word of the line.
func FuzzMounts(f *testing.F) {
	f.Add("36 35 259:1 / /mnt rw - ext4 /dev/nvme0n1 rw\n")
	f.Add("22 1 0:20 / /sys rw - sysfs sysfs rw")
	f.Add("/dev/sda2 partition 1 2 3\n")
	f.Fuzz(func(t *testing.T, line string) {
		for _, name := range usedDevices(line) {
			if name == "" || !strings.Contains(line, name) {
				t.Errorf("%q uses %q", line, name)
			}
		}
	})
}
