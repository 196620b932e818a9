// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
)

// TestHangingLink checks that a PCI function whose link cannot be read is read only once, and that all other
// functions are shown.
func TestHangingLink(t *testing.T) {
	b := start(t, ""+
		"P: /devices/pci0000:00/0000:00:01.0\nE: SUBSYSTEM=pci\nA: current_link_speed=8.0 GT/s PCIe\\n\nA: current_link_width=4\\n\n\n"+
		"P: /devices/pci0000:00/0000:00:01.0/widget/a\nN: a\nE: DEVNAME=/dev/a\nE: SUBSYSTEM=widget\nE: ID_SERIAL=A\n\n"+
		"P: /devices/pci0000:00/0000:00:02.0\nE: SUBSYSTEM=pci\nA: current_link_speed=16.0 GT/s PCIe\\n\nA: current_link_width=8\\n\nA: local_cpulist=0-7\\n\n\n"+
		"P: /devices/pci0000:00/0000:00:02.0/widget/b\nN: b\nE: DEVNAME=/dev/b\nE: SUBSYSTEM=widget\nE: ID_SERIAL=B\n\n")
	silent := filepath.Join(b.machine.Root(), "sys/devices/pci0000:00/0000:00:01.0/current_link_speed")
	if err := errors.Join(os.Remove(silent), unix.Mkfifo(silent, 0o600)); err != nil { // an open waits for a writer
		t.Fatal(err)
	}
	links := func() (one, other api.Place) {
		places := get[api.Topology](b, "/v1/topology").Devices
		if len(places) != 2 {
			t.Fatalf("%+v", places)
		}
		return places[0], places[1]
	}
	for range 2 {
		if a, b := links(); a.Link != "no answer" || b.Link != "16.0 GT/s x8" || b.CPUs != "0-7" {
			t.Errorf("%q, %q, CPUs %q", a.Link, b.Link, b.CPUs)
		}
	}
	write := func() error { return os.WriteFile(silent, []byte("8.0 GT/s PCIe\n"), 0o600) }
	if err := errors.Join(write(), os.Remove(silent), write()); err != nil {
		t.Fatal(err)
	}
	for limit := 0; limit < 1000; limit++ { // the first read ends
		if a, _ := links(); a.Link == "8.0 GT/s x4" {
			return
		}
	}
	t.Error("the link is never shown")
}
