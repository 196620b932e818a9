// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"os"
	"strings"
	"testing"
)

// The shipped rule creates the link that the code expects.
func TestNVMeGenericLink(t *testing.T) {
	rules, err := os.ReadFile("../../udev/60-metalplug.rules")
	if err != nil {
		t.Fatal(err)
	}
	const link = "/dev/nvme-generic/by-id/nvme-"
	if _, name, _ := strings.Cut(link, "/dev/"); !strings.Contains(string(rules), `SYMLINK+="`+name+`%c"`) {
		t.Errorf("no rule makes %s", link)
	}
}
