// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

// TestUnmatched checks the text about a pattern that matches no device.
func TestUnmatched(t *testing.T) {
	for _, test := range []struct {
		recording string
		class     *device.Class
		key       string
		pattern   string
		want      string // end of the text
	}{
		{"nvme", &device.NVMe, "PCI_ID", "144D:*", ""},
		{"nvme", &device.NVMe, "PCI_ID", "Micron", `; PCI_ID is "144D:A80A"`},
		{"nvme", &device.NVMe, "DEVNAME", "/dev/nvme3n1", `; DEVNAME is "/dev/nvme2n1"`},
		{"nvme", &device.NVMe, "METALPLUG_ID", "NVME-EUI*", `; METALPLUG_ID is "nvme-eui.36344830545001230025384300000001"`},
		{"nvme", &device.NVMe, "DRIVER", "nvem", `; DRIVER is "nvme"`},
		{"nvme", &device.NVMe, "COLOUR", "blue", "; they have no COLOUR, but DEVLINKS DEVNAME DEVTYPE DRIVER ID_NSID ID_SERIAL_SHORT ID_WWN MAJOR METALPLUG_ID MINOR NVME_TRTYPE PCI_CLASS PCI_ID PCI_SLOT_NAME SUBSYSTEM"},
		{"nvme", &device.NVMe, "ATTR{nsid}", "1", `; ATTR{nsid} is "2"`},
		{"nvme", &device.NVMe, "ATTR{wwids}", "x9x9", `; their directories in /sys have no such file`},
		{"nvme", &device.GPU, "PCI_ID", "144D:*", "this node has no device of class gpu"},
		{"node-serial", &device.Generic, "ID_MODEL", "UProt*", `; ID_MODEL is "FT232R_USB_UART" or "UPort_1250" or "USB_Serial"`},
		{"node-serial", &device.Generic, "DEVNAME", "/dev/ttyACM0", `; DEVNAME is "/dev/ttyUSB0" or "/dev/ttyUSB2" or "/dev/ttyUSB3"`},
	} {
		h, seen := loadMachine(t, test.recording)
		key, text := device.Unmatched(h, test.class, seen, map[string]string{test.key: test.pattern})
		if !strings.HasSuffix(text, test.want) || (text == "") != (test.want == "") || strings.Contains(text, ";") != (key == test.key) {
			t.Errorf("%s = %q: key %q, %s\nwant %s", test.key, test.pattern, key, text, test.want)
		}
	}
	h, seen := loadMachine(t, "node-serial")
	_, text := device.Unmatched(h, &device.Generic, seen, map[string]string{"ID_MODEL": "UPort*", "DEVNAME": "/dev/ttyUSB0"})
	if want := `no device matches all keys; the nearest is node-FTDI_FT232R_USB_UART_A50285BI-if00: ID_MODEL is "FT232R_USB_UART", not "UPort*"`; text != want {
		t.Errorf("%s\nwant %s", text, want)
	}
}
