// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// logged is a kernel log to which a test writes. It is a FIFO, so the poller treats it like /dev/kmsg.
type logged struct {
	*kernelLog
	t      *testing.T
	writer *os.File
	events chan Event
	done   chan error
}

func newLogged(t *testing.T) *logged {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "kmsg")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { writer.Close() })
	reader, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	k, err := openKernelLog(reader)
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	t.Cleanup(k.close)
	k.functions = dir
	for _, address := range []string{"0000:18:00.0", "10000:e1:00.0"} {
		if err := os.Symlink("../../../devices/pci0000:15/0000:15:01.0/"+address, filepath.Join(dir, address)); err != nil {
			t.Fatal(err)
		}
	}
	return &logged{kernelLog: k, t: t, writer: writer, events: make(chan Event), done: make(chan error, 1)}
}

// run listens until the test is over or stop is called.
func (l *logged) run() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	l.t.Cleanup(cancel)
	go func() { l.done <- l.listen(ctx, l.events) }()
	return func() error {
		cancel()
		return <-l.done
	}
}

func (l *logged) write(text string) {
	l.t.Helper()
	if _, err := l.writer.WriteString(text); err != nil {
		l.t.Fatal(err)
	}
}

// next returns the message of the next event and checks its other fields.
func (l *logged) next(sysPath string) string {
	l.t.Helper()
	select {
	case e := <-l.events:
		if e.Action != Logged || e.Device.SysPath != sysPath || e.Device.Subsystem != "pci" || e.Received.IsZero() {
			l.t.Errorf("event %+v", e)
		}
		return e.Device.Properties.Value("MESSAGE")
	case err := <-l.done:
		l.t.Fatalf("listen: %v", err)
	case <-time.After(10 * time.Second):
		l.t.Fatal("no event")
	}
	return ""
}

const (
	xid79 = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
	gpu   = "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0"
)

func TestKernelLog(t *testing.T) {
	l := newLogged(t)
	stop := l.run()
	l.write("6,1,10,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=+usb:1-1\n")
	l.write("3,2,20,-;" + xid79 + "\n")
	if got := l.next(gpu); got != xid79 {
		t.Errorf("message %q", got)
	}
	// A process can write any message, but not with the kernel's facility. The function must also exist.
	l.write("11,3,30,-;" + xid79 + "\nx\n;\n3;\n3,4,40,-;NVRM: Xid (PCI:0000:99:00): 79, gone\n")
	l.write("3,5,50,c,extra=1;NVRM: Xid (PCI:10000:e1:00 GPU-I:05): 48, DBE\\x0aSecond line\n SUBSYSTEM=pci\n")
	if got := l.next("/sys/devices/pci0000:15/0000:15:01.0/10000:e1:00.0"); got != "NVRM: Xid (PCI:10000:e1:00 GPU-I:05): 48, DBE" {
		t.Errorf("message %q", got)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("listen: %v", err)
	}
}

func TestKernelLogOverwritten(t *testing.T) {
	l := newLogged(t)
	overwritten := 0
	l.read = func(buf []byte) (int, error) {
		if overwritten++; overwritten <= 2 {
			return 0, unix.EPIPE
		}
		return l.file.Read(buf)
	}
	l.run()
	l.write("3,2,20,-;" + xid79 + "\n")
	if got := l.next(gpu); got != xid79 {
		t.Errorf("message %q", got)
	}
}

// The log returns only messages that were written after it was opened. It needs only the node /dev/kmsg.
func TestOpenKernelLog(t *testing.T) {
	k, err := openKernelLog(nil)
	if err != nil {
		need.Lacks(t, "root", "no kernel log here: %v", err)
	}
	defer k.close()
	k.read = func(buf []byte) (int, error) {
		n, err := k.file.Read(buf)
		if err == nil {
			t.Logf("written meanwhile: %q", buf[:n])
		}
		return n, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := k.listen(ctx, make(chan Event)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("listen: %v", err)
	}
}

func TestFunctionIn(t *testing.T) {
	for message, want := range map[string]string{
		"NVRM: Xid (PCI:0000:18:00.0): 79, x":                 "0000:18:00.0",
		"NVRM: Xid (PCI:0000:18:00 GPU-I:05 GPU-CI:00): 31":   "0000:18:00.0",
		"NVRM: Xid (PCI:../../../etc): 79":                    "",
		"NVRM: Xid (PCI:0000:18:00./x): 79":                   "",
		"NVRM: Xid (PCI:0000:18:00.8): 79":                    "",
		"NVRM: Xid (PCI:":                                     "",
		"NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.": "",
		"xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.": "0000:03:00.0",
		"xe 0000:03:00.0: [drm] Using GuC firmware":                                               "",
		"amdgpu 0000:03:00.0: amdgpu: GPU reset end with ret = -110":                              "0000:03:00.0",
		"amdgpu 0000:03:00.0: amdgpu: GPU reset(1) succeeded!":                                    "0000:03:00.0",
		"amdgpu 0000:03:00.0: amdgpu: SMU is initialized successfully!":                           "",
		"amdgpu: GPU reset is not of a function":                                                  "",
		"fake: amdgpu 0000:03:00.0: GPU reset(1) succeeded!":                                      "",
	} {
		if got := functionIn(message); got != want {
			t.Errorf("functionIn(%q) = %q, want %q", message, got, want)
		}
	}
}

func FuzzKernelLog(f *testing.F) {
	f.Add("3,2,20,-;" + xid79 + "\n")
	f.Add("6,1,10,-;usb 1-1: new device\n SUBSYSTEM=usb\n")
	f.Add("3,;xe 0000:03:00.0: CRITICAL: Xe has declared device 0000:03:00.0 as wedged.")
	k := &kernelLog{functions: f.TempDir()}
	if err := os.Symlink("../../../devices/0000:18:00.0", filepath.Join(k.functions, "0000:18:00.0")); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if e, ok := k.event(line); ok && e.Device.SysPath != "/sys/devices/0000:18:00.0" {
			t.Errorf("%q: %+v", line, e)
		}
	})
}
