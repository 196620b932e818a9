// SPDX-License-Identifier: Apache-2.0

package reset

// This file contains all kernel calls that reach a device. No other file in this package opens a node, calls an ioctl or writes
// to sysfs.

import (
	"context"
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// kernel contains the functions that call the kernel. Tests replace these functions.
type kernel struct {
	open  func(path string, flags int) (fd int, err error)
	close func(fd int) error
	node  func(fd int) node
	flock func(fd, how int) error
	fsync func(fd int) error
	pread func(fd int, p []byte, offset int64) (n int, err error)
	// ioctl passes the address of the argument to the kernel, or 0 if the argument is nil. The kernel may write to the argument.
	ioctl func(fd int, request uintptr, argument []byte) (result int, err error)
	// pass sends an NVMe command with NVME_IOCTL_ADMIN_CMD or NVME_IOCTL_IO_CMD. Depending on the command, the kernel reads or
	// writes the buffer named data. The controller returns the status, which is 0 after success.
	pass  func(fd int, request uintptr, c *adminCommand, data []byte) (status uint16, err error)
	write func(path, value string) error // writes a sysfs attribute
}

// node describes an open device node.
type node struct {
	block  bool   // a block device; otherwise a character device
	number string // empty for any other file
}

// theKernel returns functions that call the real kernel.
func theKernel() kernel {
	return kernel{
		open:  openNode,
		close: unix.Close,
		node:  nodeOf,
		flock: unix.Flock,
		fsync: unix.Fsync,
		pread: unix.Pread,
		ioctl: ioctl,
		pass:  pass,
		write: writeAttribute,
	}
}

// openNode opens a device node. openNode does not follow links.
func openNode(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func nodeOf(fd int) node {
	var s unix.Stat_t
	_ = unix.Fstat(fd, &s) // does not fail for an open descriptor
	number, block := sysfs.Number(s)
	return node{block, number}
}

func ioctl(fd int, request uintptr, argument []byte) (int, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(argument))))
	if errno != 0 {
		return -1, errno
	}
	return int(result), nil
}

// pass sends an NVMe command with an ioctl. The ioctl returns an errno, or the status of the command.
func pass(fd int, request uintptr, c *adminCommand, data []byte) (uint16, error) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	if len(data) > 0 {
		pinned.Pin(&data[0])
		c.addr, c.dataLen = uint64(uintptr(unsafe.Pointer(&data[0]))), uint32(len(data))
	}
	status, err := ioctl(fd, request, unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c)))
	return uint16(max(status, 0)), err
}

// writeAttribute does the same as "echo value > path". writeAttribute calls write(2) only once, as sysfs requires.
func writeAttribute(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// useIdleIO moves the calling goroutine to the I/O scheduler's idle class (ioprio_set(2), include/uapi/linux/ioprio.h). If the
// kernel refuses this, reads keep their normal priority. The class applies to a thread, so useIdleIO also locks the goroutine to
// its thread.
func useIdleIO() {
	const (
		whoProcess = 1 // IOPRIO_WHO_PROCESS, with 0 for the calling thread
		classIdle  = 3 // IOPRIO_CLASS_IDLE
		classShift = 13
	)
	runtime.LockOSThread()
	unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, classIdle<<classShift)
}

// devices is the sysfs directory that contains all devices.
const devices = sysfs.Devices

// host represents this machine and the calls to its kernel. The methods of host accept the paths that the kernel uses
// ("/sys/devices/…", "/dev/…", "/proc/…"), even if a test has put these files below another root directory.
type host struct {
	sysfs.Tree
	kernel
	step step

	run      string                        // "/run", which contains udevd's state in the directory "udev"
	locks    string                        // the directory for the lock files
	settings func() (config.Config, error) // reads the configuration
	selects  func(Request) error           // returns an error if the resource does not select the device
	// holders returns the processes that have the given devices open.
	holders func(context.Context, config.Config, []cgroup.Number) (cgroup.Answer, error)
}
