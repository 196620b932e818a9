// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestCounterMark(t *testing.T) {
	for _, test := range []struct {
		before, now uint64
		fatal       bool
		want        string
	}{
		{0, 1, true, "1 or more fatal PCIe errors (aer_dev_fatal)"},
		{5, 14, true, "1 or more fatal PCIe errors (aer_dev_fatal)"},
		{5, 15, true, "10 or more fatal PCIe errors (aer_dev_fatal)"},
		{0, 1<<64 - 1, true, "10000000000000000000 or more fatal PCIe errors (aer_dev_fatal)"},
		{0, 700, false, "100 or more nonfatal PCIe errors (aer_dev_nonfatal)"},
	} {
		c := device.Counter{SysPath: "/sys/x", Name: device.NonfatalErrors, Value: test.now, Fatal: test.fatal}
		if test.fatal {
			c.Name = device.FatalErrors
		}
		want := device.Mark{SysPath: "/sys/x", Source: c.Name, Reason: test.want, Warning: !test.fatal}
		if got := c.Mark(test.before); got != want {
			t.Errorf("%d to %d: %+v, want %+v", test.before, test.now, got, want)
		}
	}
}
