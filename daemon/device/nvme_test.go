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

// The kernel does not claim a disk that it exports over a network. A name that metalplug cannot see may be the pod's.
func TestInUseByAnExport(t *testing.T) {
	const namespace = "/sys/kernel/config/nvmet/subsystems/nqn.1/namespaces/1/"
	for opened, want := range map[string]string{
		"/dev/nvme2n1": "in use: nvme2n1 is exported by the NVMe subsystem nqn.1",
		"/srv/disk":    "in use: cannot determine whether nvme2n1 is exported: the NVMe subsystem nqn.1 has opened \"/srv/disk\"",
	} {
		h, devices := loadMachine(t, "nvme")
		write(t, h, namespace+"enable", "1\n")
		write(t, h, namespace+"device_path", opened+"\n")
		for _, s := range inspectAll(h, everything, devices) {
			if s.Offer == nil || !strings.HasPrefix(s.Offer.Error(), want) || s.HostUse(true) != (opened == "/dev/nvme2n1") || s.HostUse(false) != s.HostUse(true) {
				t.Errorf("%s: %v, used by the host while a pod has it: %t", opened, s.Offer, s.HostUse(true))
			}
		}
	}
}
