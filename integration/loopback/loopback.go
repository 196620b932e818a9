// SPDX-License-Identifier: Apache-2.0

// Package loopback makes loop devices for tests.
package loopback

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// New makes a loop device over a file, and returns its node. The test ends if this machine has no loop devices. The device
// is detached at the end of the test.
func New(t testing.TB, file string) (node string) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can make a loop device")
	}
	node, err := attach(file)
	for errors.Is(err, unix.EBUSY) { // another process has taken the same loop device
		node, err = attach(file)
	}
	if err != nil {
		need.Lacks(t, "root", "loop devices do not work here: %v", err)
	}
	t.Cleanup(func() {
		loop, err := os.Open(node)
		if err == nil {
			err = errors.Join(unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0), loop.Close())
		}
		if err != nil {
			t.Errorf("detach %s: %v", node, err)
		}
	})
	return node
}

// attach attaches a file to a free loop device. It closes the device, because an open disk would count as in use.
func attach(file string) (node string, err error) {
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		return "", err
	}
	defer control.Close()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", err
	}
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer backing.Close()
	node = fmt.Sprintf("/dev/loop%d", number)
	loop, err := os.OpenFile(node, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer loop.Close()
	c := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_PARTSCAN}}
	return node, unix.IoctlLoopConfigure(int(loop.Fd()), &c)
}
