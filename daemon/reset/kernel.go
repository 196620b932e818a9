// SPDX-License-Identifier: Apache-2.0

package reset

// The one seam to the kernel. Nothing else in this package opens a node, makes an ioctl or writes to sysfs.

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

// kernel is what the kernel is asked for. Tests put something else in its place.
type kernel struct {
	open  func(path string, flags int) (fd int, err error)
	close func(fd int) error
	node  func(fd int) (node, error)
	flock func(fd, how int) error
	fsync func(fd int) error
	pread func(fd int, p []byte, offset int64) (n int, err error)
	// ioctl passes the address of an argument, which the kernel may change, or 0 for nil.
	ioctl func(fd int, request uintptr, argument []byte) (result int, err error)
	// pass passes an NVMe command by NVME_IOCTL_ADMIN_CMD or NVME_IOCTL_IO_CMD. Data goes either way. The status is the
	// controller's, 0 for success.
	pass  func(fd int, request uintptr, c *adminCommand, data []byte) (status uint16, err error)
	write func(path, value string) error // an attribute of sysfs
	// openLock opens a lock file, whose directory no one else may enter.
	openLock func(file string) (fd int, err error)
	// idle lets the calling thread read only when no one else wants to.
	idle func()
}

// node is what an open node is.
type node struct {
	block  bool // or a character device
	number string
}

// theKernel is the real one.
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

		openLock: openLock,
		idle:     idle,
	}
}

// openNode follows no link.
func openNode(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func nodeOf(fd int) (node, error) {
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return node{}, err
	}
	number, block := sysfs.Number(s)
	if number == "" {
		return node{}, errors.New("not a device node")
	}
	return node{block, number}, nil
}

func ioctl(fd int, request uintptr, argument []byte) (int, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(argument))))
	if errno != 0 {
		return -1, errno
	}
	return int(result), nil
}

// pass makes such an ioctl, which returns an errno, or else the status of the command.
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

// writeAttribute does what "echo value > path" does, in one write, which is what sysfs takes.
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

// idle asks for the idle class of the I/O scheduler (ioprio_set(2), include/uapi/linux/ioprio.h). It counts for the calling
// thread. Where it is not allowed the reads are as urgent as any.
func idle() {
	const (
		whoProcess = 1 // IOPRIO_WHO_PROCESS, with 0 for the calling thread
		classIdle  = 3 // IOPRIO_CLASS_IDLE
		classShift = 13
	)
	unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, classIdle<<classShift)
}

// devices is where the kernel keeps all devices.
const devices = sysfs.Devices

// host is the machine, with the seam to its kernel. Its methods take the names that the kernel uses ("/sys/devices/…",
// "/dev/…", "/proc/…"), wherever the trees really are.
type host struct {
	sysfs.Tree
	kernel
	step step

	run      string                        // where udevd keeps its state, in the directory udev
	locks    string                        // the directory of the lock files
	settings func() (config.Config, error) // reads the configuration
	selects  func(Request) error           // refuses a device that no resource selects
	// holders asks which processes have devices open.
	holders func(context.Context, config.Config, []cgroup.Number) (cgroup.Answer, error)
}
