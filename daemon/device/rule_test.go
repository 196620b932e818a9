// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestRuleFor(t *testing.T) {
	h, devices := loadMachine(t, "nvme")
	u := devices[len(devices)-1]
	nvme := func(match, exclude map[string]string) []device.Rule {
		return []device.Rule{{Resource: "test/nvme", Class: &device.NVMe, Match: match, Exclude: exclude}}
	}
	for _, test := range []struct {
		name  string
		rules []device.Rule
		want  string // the error, or the resource
	}{
		{"own property", nvme(map[string]string{"ID_NSID": "2"}, nil), "test/nvme"},
		{"property of the controller", nvme(map[string]string{"NVME_TRTYPE": "pcie"}, nil), "test/nvme"},
		{"property of the function", nvme(map[string]string{"PCI_SLOT_NAME": "0000:65:*", "DRIVER": "nvme"}, nil), "test/nvme"},
		{"PCI ID in another case", nvme(map[string]string{"PCI_ID": "144d:a80a"}, nil), "test/nvme"},
		{"attribute", nvme(map[string]string{"ATTR{nsid}": "2|3"}, nil), "test/nvme"},
		{"no such property", nvme(map[string]string{"ID_WWN": "*", "NONE": "*"}, nil), "no resource matches the device: test/nvme: the device has no NONE"},
		{"no such attribute", nvme(map[string]string{"ATTR{none}": "*"}, nil), "no resource matches the device: test/nvme: the device has no ATTR{none}"},
		{"another value", nvme(map[string]string{"ID_NSID": "1"}, nil), `no resource matches the device: test/nvme: ID_NSID is "2", not "1"`},
		{
			"another case", nvme(map[string]string{"DRIVER": "NVM*"}, nil),
			`no resource matches the device: test/nvme: DRIVER is "nvme", not "NVM*": they differ only in case`,
		},
		{
			"excluded", nvme(map[string]string{"ID_NSID": "2"}, map[string]string{"PCI_SLOT_NAME": "0000:65:00.0"}),
			`no resource matches the device: test/nvme: excluded by PCI_SLOT_NAME = "0000:65:00.0"`,
		},
		{"excluded by what it has not", nvme(nil, map[string]string{"NONE": "*"}), "test/nvme"},
		{"of another class", []device.Rule{{Resource: "test/gpu", Class: &device.GPU}}, "no resource of class nvme is configured"},
		{"none", nil, "no resource of class nvme is configured"},
		{
			"the first that matches",
			[]device.Rule{{Resource: "a", Class: &device.NVMe, Match: map[string]string{"ID_NSID": "1"}}, {Resource: "b", Class: &device.NVMe}, {Resource: "c", Class: &device.NVMe}},
			"b",
		},
		{
			"none of two",
			[]device.Rule{{Resource: "a", Class: &device.NVMe, Match: map[string]string{"ID_NSID": "1"}}, {Resource: "b", Class: &device.NVMe, Match: map[string]string{"X": "1"}}},
			`no resource matches the device: a: ID_NSID is "2", not "1"; b: the device has no X`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := device.Sighting{Device: &device.Device{Class: &device.NVMe, Udev: &u}}
			rule, err := s.Taker(h, test.rules)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = rule.Resource
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
