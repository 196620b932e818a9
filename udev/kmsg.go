// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog makes events of what drivers write into the kernel's log about a PCI function, where they send none.
//
// Follows Documentation/ABI/testing/dev-kmsg. Each read gives one record, "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT\n", then
// lines that begin with a blank. Bytes that cannot be printed are \xNN. Where records were overwritten before they were read,
// a read gives EPIPE once, and the next one the oldest record that is left.
type kernelLog struct {
	file        *os.File
	read        func(buf []byte) (int, error) // of the file
	functions   string                        // the directory of links to the PCI functions, by address
	overwritten atomic.Uint64                 // times that the kernel overwrote records before they were read
}

const (
	// kernelLogPath is the node of the kernel's log. To open it takes CAP_SYSLOG where kernel.dmesg_restrict is set, as on
	// Debian (devkmsg_open). To read a log that systemd has opened takes no capability.
	kernelLogPath = "/dev/kmsg"
	// longestRecord is more than a record can have (PRINTK_MESSAGE_MAX). With less the read gives EINVAL.
	longestRecord = 16 << 10 // bytes
	// fromUser is the first facility that a process can write with. The kernel's own is 0 (devkmsg_write).
	fromUser = 8
)

// openKernelLog opens the log, of which only what is written from now on is read.
func openKernelLog() (*kernelLog, error) {
	file, err := os.Open(kernelLogPath)
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		file.Close()
		return nil, err
	}
	return newKernelLog(file), nil
}

// kernelLogFromFile takes the log that systemd has opened and keeps. Its first reads give the messages that no process has
// read. The log has a descriptor of its own. f stays the caller's and may be closed.
func kernelLogFromFile(f *os.File) (*kernelLog, error) {
	own, err := duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("take kernel log: %w", err)
	}
	return newKernelLog(os.NewFile(uintptr(own), kernelLogPath)), nil
}

func newKernelLog(file *os.File) *kernelLog {
	return &kernelLog{file: file, read: file.Read, functions: "/sys/bus/pci/devices"}
}

// close is allowed on nil, the log that could not be opened.
func (k *kernelLog) close() {
	if k != nil {
		k.file.Close()
	}
}

// listen sends an event for each message that is about a PCI function, until ctx ends, whose error it then returns.
func (k *kernelLog) listen(ctx context.Context, events chan<- Event) error {
	defer interrupt(ctx, k.file)()
	buf := make([]byte, longestRecord)
	for {
		n, err := k.read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.EPIPE):
			k.overwritten.Add(1)
		case err != nil:
			return fmt.Errorf("read kernel log: %w", err)
		}
		received := time.Now()
		for line := range strings.Lines(string(buf[:n])) {
			if event, ok := k.event(line); ok {
				event.Received = received
				if err := send(ctx, event, events); err != nil {
					return err
				}
			}
		}
	}
}

// event makes an event of a line of a record, if it is the kernel's and about a PCI function that is there.
func (k *kernelLog) event(line string) (Event, bool) {
	head, text, ok := strings.Cut(line, ";")
	priority, _, _ := strings.Cut(head, ",")
	number, err := strconv.ParseUint(priority, 10, 32)
	if !ok || err != nil || number >= fromUser {
		return Event{}, false
	}
	address := functionIn(text)
	if address == "" {
		return Event{}, false
	}
	target, err := os.Readlink(filepath.Join(k.functions, address))
	if err != nil {
		return Event{}, false
	}
	message, _, _ := strings.Cut(strings.TrimSpace(text), `\x0a`)
	return Event{Action: Logged, Device: Device{
		Subsystem:  "pci",
		SysPath:    path.Join("/sys/bus/pci/devices", target),
		Properties: NewProperties(map[string]string{"SUBSYSTEM": "pci", "PCI_SLOT_NAME": address, "MESSAGE": message}),
	}}, true
}

// functionIn returns the address of the PCI function that a message about health is about, or "". NVIDIA's driver leaves out
// the function, which is 0 for every GPU.
func functionIn(message string) string {
	rest, ok := strings.CutPrefix(message, "NVRM: Xid (PCI:")
	switch {
	case ok:
	case strings.Contains(message, " CRITICAL: "):
		rest, ok = strings.CutPrefix(message, "xe ")
	case strings.Contains(message, " GPU reset"):
		rest, ok = strings.CutPrefix(message, "amdgpu ")
	}
	if !ok {
		return ""
	}
	end := strings.IndexAny(rest, " )")
	if end < 0 {
		return ""
	}
	address := strings.TrimSuffix(rest[:end], ":")
	if !strings.Contains(address, ".") {
		address += ".0"
	}
	if !IsPCIAddress(address) {
		return ""
	}
	return address
}
