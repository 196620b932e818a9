// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"strings"
	"testing"
)

// FuzzMounts: what is used is a name in /dev or a number, and each word of the text.
func FuzzMounts(f *testing.F) {
	f.Add("36 35 259:1 / /mnt rw - ext4 /dev/nvme0n1 rw\n", false)
	f.Add("22 1 0:20 / /sys rw - sysfs sysfs rw\n23 1 8:1 / / rw - xfs /dev/root rw", false)
	f.Add("Filename\tType\n/dev/sda2 partition 1 2 3\n", true)
	f.Fuzz(func(t *testing.T, text string, swaps bool) {
		used := make(map[string]struct{})
		addUsed(used, text, swaps)
		for name := range used {
			if name == "" || !strings.Contains(text, name) || swaps && !strings.HasPrefix(name, "/dev/") {
				t.Errorf("%q uses %q", text, name)
			}
		}
	})
}
