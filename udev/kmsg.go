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
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog turns driver messages about PCI functions into events, because drivers report some faults only in the log.
//
// The format is described in Documentation/ABI/testing/dev-kmsg. Each read returns one record,
// "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT\n", followed by lines that begin with a space. Unprintable bytes are written as
// \xNN. If the kernel overwrites unread records, the next read fails with EPIPE. The read after it returns the oldest remaining
// record.
type kernelLog struct {
	file      *os.File
	read      func(buf []byte) (int, error) // reads the file
	functions string                        // directory with a link to each PCI function, by address
}

const (
	// kernelLogPath is the device node of the kernel log. Opening the node requires CAP_SYSLOG if kernel.dmesg_restrict
	// is set, as on Debian (devkmsg_open). Reading a log that systemd has opened requires no capability.
	kernelLogPath = "/dev/kmsg"
	// longestRecord is larger than any record (PRINTK_MESSAGE_MAX). With a smaller buffer, read fails with EINVAL.
	longestRecord = 16 << 10 // bytes
	// fromUser is the lowest PRIORITY of a message from a process. PRIORITY is eight times the facility, plus the level. Only the
	// kernel uses facility 0 (devkmsg_write).
	fromUser = 8
)

// openKernelLog uses a log that systemd has opened and keeps open. Reading then begins with the first message that no process has
// read through this descriptor. openKernelLog duplicates the descriptor. The caller still owns the file and may close it. If passed
// is nil, openKernelLog opens the log at its end, so that reads skip earlier messages.
func openKernelLog(passed *os.File) (k *kernelLog, err error) {
	var file *os.File
	if passed != nil {
		var own int
		own, err = duplicate(passed)
		file = os.NewFile(uintptr(own), kernelLogPath)
	} else if file, err = os.Open(kernelLogPath); err == nil {
		_, err = file.Seek(0, io.SeekEnd)
	}
	if err != nil {
		file.Close() // does nothing if there is no file
		return nil, err
	}
	return &kernelLog{file: file, read: file.Read, functions: "/sys/bus/pci/devices"}, nil
}

// close closes the log. If the log could not be opened, k is nil, and close does nothing.
func (k *kernelLog) close() {
	if k != nil {
		k.file.Close()
	}
}

// listen sends an event for each message about a PCI function until ctx ends, and returns the context's error.
func (k *kernelLog) listen(ctx context.Context, events chan<- Event) error {
	defer interrupt(ctx, k.file)()
	buf := make([]byte, longestRecord)
	for {
		n, err := k.read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, unix.EPIPE):
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

// event returns an [Event] for a line in a record. The second result is false if a process wrote the line, or if the line names
// no existing PCI function.
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

// functionIn returns the address of the PCI function whose health a message describes, or "" for other messages. NVIDIA's driver
// omits the function number, which is 0 for every GPU.
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
