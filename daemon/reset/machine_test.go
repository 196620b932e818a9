// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// machine is a simulated host. Its files are below a temporary directory, and its nodes record all accesses.
type machine struct {
	*testing.T
	*host
	root   string
	nodes  map[string]*fakeNode // keys are paths
	mu     sync.Mutex
	open   map[int]*fakeNode
	next   int
	turn   chan struct{} // lets one read at a time run the hooks of a test
	config config.Config
	others []cgroup.Holder // processes that have nodes open
	unread error           // error of the request for holders
	pods   []cgroup.Unread // pods with processes that could not be read
	calls  []string        // all calls that could change something
	// The functions that answer admin commands and ioctls. If a function is nil, all of them succeed.
	onAdmin func(c adminCommand, data []byte) (uint16, error)
	onIO    func(c adminCommand, data []byte) (uint16, error)
	onIoctl func(n *fakeNode, request uintptr, argument []byte) (int, error)
	onWrite func(path, value string) error

	syncError error // error of a drive that cannot write back its cache
}

// fakeNode is a node in /dev.
type fakeNode struct {
	t         testing.TB
	name      string
	node      node
	exclusive int // descriptors that are open exclusively
	busy      bool
	claimed   func() bool     // reports whether an open fails now because the node is busy
	bad       map[int64]error // unreadable blocks and their errors; keys are offsets
	partly    bool            // a read that includes a bad block returns the data before this block
	stays     bool            // bad blocks stay unreadable after an erasure
	volatile  bool            // data in the drive's cache, which a power failure would lose
	data      []byte
	seq       uint64
	nsid      int
	readError error
	readHook  func()
	onRead    func(offset int64, length int)
	opened    func()

	below      uint64 // number of the device that backs a loop device
	belowError error
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{
		T: t, root: root, nodes: map[string]*fakeNode{}, open: map[int]*fakeNode{}, next: 100, turn: make(chan struct{}, 1), config: allowAll(),
	}
	m.host = &host{Tree: sysfs.At(root), kernel: kernel{
		open: m.openNode, close: m.closeNode, node: func(fd int) node { return m.at(fd).node },
		flock: func(int, int) error { return nil }, fsync: m.syncNode, pread: m.readNode, write: m.writeAttr,
		ioctl: m.ioctlNode, pass: m.passNode,
	}}
	m.run, m.locks, m.selects = root+"/run", root+"/locks", m.checkSelected
	m.settings = func() (config.Config, error) { return m.config, nil }
	m.host.holders = func(ctx context.Context, _ config.Config, asked []cgroup.Number) (cgroup.Answer, error) {
		all := slices.DeleteFunc(slices.Clone(m.others), func(o cgroup.Holder) bool { return !slices.Contains(asked, o.Number) })
		return cgroup.Answer{Holders: all, Unread: m.pods}, cmp.Or(m.unread, ctx.Err())
	}
	m.files(map[string]string{
		"/proc/1/mountinfo": "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n", "/proc/self/mountinfo": "", "/proc/swaps": "Filename Type Size\n",
		"/sys/devices/empty": "", "/sys/block/.": "",
	})
	return m
}

// files writes files. A value that begins with "-> " creates a link, and a name that ends in "/." creates a directory.
func (m *machine) files(all map[string]string) {
	m.Helper()
	for name, content := range all {
		name = m.root + name
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		if target, ok := strings.CutPrefix(content, "-> "); ok && err == nil {
			os.Remove(name)
			err = os.Symlink(target, name)
		} else if err == nil && !strings.HasSuffix(name, "/.") {
			err = os.WriteFile(name, []byte(content), 0o644)
		}
		if err != nil {
			m.Fatal(err)
		}
	}
}

func (m *machine) remove(name string) {
	m.Helper()
	if err := os.RemoveAll(m.root + name); err != nil {
		m.Fatal(err)
	}
}

// in returns the content of a link from a device to another path in sysfs.
func in(sysPath, target string) string {
	rel, err := filepath.Rel(sysPath, target)
	if err != nil {
		panic(err)
	}
	return "-> " + rel
}

func (m *machine) rename(from, to string) {
	m.Helper()
	if err := os.Rename(from, to); err != nil {
		m.Fatal(err)
	}
}

const (
	function0   = "/sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0"
	controller0 = function0 + "/nvme/nvme0"
	disk0       = controller0 + "/nvme0n1"
)

// controller adds an NVMe controller on a PCI function.
func (m *machine) controller(function, name, serial string) string {
	m.Helper()
	c := function + "/nvme/" + name
	m.files(map[string]string{
		function + "/subsystem": in(function, "/sys/bus/pci"), function + "/driver": in(function, "/sys/bus/pci/drivers/nvme"),
		function + "/reset": "", function + "/reset_method": "flr bus\n", function + "/config": "\x36\x1b\x10\x00",
		"/sys/bus/pci/drivers/nvme/.": "", "/sys/class/block/.": "", "/sys/class/nvme/.": "", "/sys/class/nvme-generic/.": "",
		function + "/uevent": "DRIVER=nvme\nPCI_CLASS=10802\nPCI_ID=1B36:0010\nPCI_SLOT_NAME=" + path.Base(function) + "\n",
		c + "/subsystem":     in(c, "/sys/class/nvme"), c + "/device": "-> ../..", c + "/transport": "pcie\n",
		c + "/serial": serial + "   \n", c + "/state": "live\n", c + "/dev": "245:" + strings.TrimPrefix(name, "nvme") + "\n",
		c + "/uevent": "MAJOR=245\nDEVNAME=" + name + "\n",
	})
	m.node("/dev/"+name, "245:"+strings.TrimPrefix(name, "nvme"), false)
	return c
}

// disk adds a disk with a node and 4 MiB of zeroes.
func (m *machine) disk(sysPath, number, wwid string) *fakeNode {
	m.Helper()
	name := path.Base(sysPath)
	m.files(map[string]string{
		sysPath + "/subsystem": in(sysPath, "/sys/class/block"), sysPath + "/dev": number + "\n", sysPath + "/wwid": wwid + "\n",
		sysPath + "/uevent": "DEVNAME=" + name + "\nDEVTYPE=disk\n", sysPath + "/diskseq": "9\n", sysPath + "/hidden": "0\n",
		sysPath + "/device": "-> ..", sysPath + "/holders/.": "", sysPath + "/queue/discard_max_bytes": "1073741824\n", sysPath + "/nsid": "1\n",
		"/sys/block/" + name: in("/sys/block", sysPath), "/sys/class/block/.": "",
	})
	n := m.node("/dev/"+name, number, true)
	n.seq, n.nsid = 9, 1
	n.size(4 << 20)
	return n
}

// size gives a disk the given number of zeroes. The memory is outside Go's heap, where the race detector would need four
// bytes for each byte. It is never unmapped, because work that cannot be interrupted may outlast its test.
func (n *fakeNode) size(bytes int) {
	data, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		n.t.Fatal(err)
	}
	_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // this is faster, if the kernel supports it
	n.t.Cleanup(func() { _ = unix.Madvise(data, unix.MADV_DONTNEED) })
	n.data = data
}

func (m *machine) partition(sysPath, number string) {
	m.Helper()
	m.files(map[string]string{
		sysPath + "/partition": "1\n", sysPath + "/dev": number + "\n", sysPath + "/holders/.": "",
		sysPath + "/subsystem": in(sysPath, "/sys/class/block"), sysPath + "/uevent": "DEVNAME=" + path.Base(sysPath) + "\nDEVTYPE=partition\n",
	})
}

func (m *machine) node(name, number string, block bool) *fakeNode {
	n := &fakeNode{t: m.T, name: path.Base(name), node: node{block, number}}
	m.nodes[name] = n
	m.files(map[string]string{name: ""})
	return n
}

// oneNVMe returns a machine with one namespace.
func oneNVMe(t *testing.T) (*machine, *fakeNode) {
	t.Helper()
	m := newMachine(t)
	m.controller(function0, "nvme0", "S1")
	return m, m.disk(disk0, "259:0", "eui.01")
}

func (m *machine) note(format string, args ...any) {
	m.calls = append(m.calls, fmt.Sprintf(format, args...))
}

func (m *machine) openNode(name string, flags int) (int, error) {
	n := m.nodes[strings.TrimPrefix(name, m.root)]
	switch {
	case n == nil:
		return -1, unix.ENOENT
	case flags&unix.O_EXCL != 0 && (n.busy || n.exclusive > 0 || n.claimed != nil && n.claimed()):
		return -1, unix.EBUSY
	}
	if n.opened != nil {
		n.opened()
	}
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		m.note("open %s for writing", n.name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	if flags&unix.O_EXCL != 0 {
		n.exclusive++
		m.next += 1000 // close recognises an exclusive descriptor by its number
	}
	fd := m.next
	m.next = fd % 1000
	m.open[fd] = n
	return fd, nil
}

// lockElsewhere locks a device as another instance does.
func (m *machine) lockElsewhere(sysPath string) {
	m.Helper()
	unlock, err := m.lockDevice(m.Context(), sysPath)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(unlock)
}

// at returns the node that is open under a descriptor.
func (m *machine) at(fd int) *fakeNode {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[fd]
}

func (m *machine) closeNode(fd int) error {
	n := m.at(fd)
	m.mu.Lock()
	defer m.mu.Unlock()
	if n == nil {
		m.Errorf("closed what is not open: %d", fd)
		return unix.EBADF
	}
	if fd > 1000 {
		n.exclusive--
	}
	delete(m.open, fd)
	return nil
}

func (m *machine) syncNode(fd int) error {
	m.at(fd).volatile = false
	return m.syncError
}

func (m *machine) readNode(fd int, p []byte, offset int64) (int, error) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	n := m.at(fd)
	if n.readHook != nil {
		n.readHook()
	}
	if n.onRead != nil {
		n.onRead(offset, len(p))
	}
	if n.readError != nil {
		return -1, n.readError
	}
	if offset >= int64(len(n.data)) {
		return 0, nil
	}
	for at := offset &^ (blockSize - 1); at < offset+int64(len(p)); at += blockSize {
		switch err := n.bad[at]; {
		case err == nil:
		case n.partly && at > offset:
			return copy(p[:at-offset], n.data[offset:]), nil
		default:
			return -1, err
		}
	}
	return copy(p, n.data[offset:]), nil
}

func (m *machine) writeAttr(name, value string) error {
	name = strings.TrimPrefix(name, m.root)
	m.note("write %q to %s", value, name)
	if m.onWrite != nil {
		return m.onWrite(name, value)
	}
	return os.WriteFile(m.root+name, []byte(value), 0o644)
}

// ioctlNode answers queries, carries out changes on the data, and records the changes.
func (m *machine) ioctlNode(fd int, request uintptr, b []byte) (int, error) {
	n := m.at(fd)
	switch request {
	case unix.BLKGETSIZE64:
		binary.NativeEndian.PutUint64(b, uint64(len(n.data)))
		return 0, nil
	case unix.BLKSSZGET:
		binary.NativeEndian.PutUint32(b, 512)
		return 0, nil
	case unix.BLKGETDISKSEQ:
		binary.NativeEndian.PutUint64(b, n.seq)
		return 0, nil
	case nvmeIoctlID:
		return n.nsid, nil
	case unix.LOOP_GET_STATUS64:
		binary.NativeEndian.PutUint64(b[16:], n.below)
		binary.NativeEndian.PutUint32(b[40:], 7)
		return 0, n.belowError
	}
	m.note("ioctl %s %#x %016x", n.name, request, b)
	if m.onIoctl != nil {
		return m.onIoctl(n, request, b)
	}
	if request == unix.BLKDISCARD || request == unix.BLKZEROOUT || request == unix.BLKSECDISCARD {
		from, length := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
		clear(n.data[from : from+length])
		n.volatile = true
		if !n.stays {
			n.bad = nil
		}
	}
	return 0, nil
}

func (m *machine) passNode(fd int, request uintptr, c *adminCommand, data []byte) (uint16, error) {
	if request == nvmeIoctlIOCmd {
		return m.ioNode(fd, c, data)
	}
	return m.adminNode(fd, c, data)
}

func (m *machine) adminNode(fd int, c *adminCommand, data []byte) (uint16, error) {
	if c.opcode != opIdentify && c.opcode != opGetLogPage {
		m.note("admin %s opcode %#x nsid %#x cdw10 %#x cdw11 %#x timeout %d", m.at(fd).name, c.opcode, c.nsid, c.cdw10, c.cdw11, c.timeoutMs)
	}
	if m.onAdmin == nil {
		return 0, nil
	}
	return m.onAdmin(*c, data)
}

// ioNode answers an I/O command, by default as a drive without registrants.
func (m *machine) ioNode(fd int, c *adminCommand, data []byte) (uint16, error) {
	if c.opcode != opReservationReport {
		m.Errorf("I/O command %#x of %s", c.opcode, m.at(fd).name)
	}
	if m.onIO == nil {
		return 0, nil
	}
	return m.onIO(*c, data)
}

// full sends a request as the daemon does, through the parsers of both sides. It checks that no descriptor stays open.
func (m *machine) full(r Request) Answer {
	m.Helper()
	if r.TimeoutMS == 0 {
		r.TimeoutMS = minute
	}
	m.permit(&r)
	a, err := exchange.Decode[Answer](m.reply(m.Context(), 0, r.Encode()))
	if err != nil {
		m.Fatal(err)
	}
	if len(m.open) > 0 {
		m.Errorf("still open: %v", maps.Values(m.open))
	}
	return a
}

// ask is like full, but omits the fields that most tests do not compare.
func (m *machine) ask(r Request) Answer {
	m.Helper()
	a := m.full(r)
	a.Size, a.Appearance, a.Erased = 0, "", false
	return a
}

// expect sends a request, and checks the result and a text in the answer.
func (m *machine) expect(r Request, want Result, text string) {
	m.Helper()
	if got := m.ask(r); got.Result != want || !strings.Contains(got.Detail+got.Done, text) {
		m.Errorf("answer is %+v, want %v with %q", got, want, text)
	}
}

const minute = int64(time.Minute / time.Millisecond)

// allowAll returns a configuration with one resource for each class. Each resource takes all devices of its class.
func allowAll() config.Config {
	c := config.Default()
	c.Resources = nil
	for _, class := range device.Classes {
		c.Resources = append(c.Resources, config.Resource{Name: "test/" + class.Name, Class: class.Name, Reset: config.ResourceReset{Scrub: config.None}})
	}
	return c
}

// permit makes the configuration permit a request, and sets the resource in the request.
func (m *machine) permit(r *Request) {
	if r.Do != Prepare || r.Resource != "" {
		return
	}
	r.Resource = "test/" + r.Class
	for i := range m.config.Resources {
		m.config.Resources[i].Reset.Method, m.config.Resources[i].Reset.Scrub = r.Method, r.Scrub
	}
}

// selectsAll disables the check of the configuration, for tests of a method. TestSelected tests that check.
func (m *machine) selectsAll() { m.selects = func(Request) error { return nil } }

// byWWID identifies the disks of the tests.
func byWWID(wwid string) map[string]string { return map[string]string{"wwid": wwid} }

// ext4 writes the signature of a file system to a disk.
func (n *fakeNode) ext4() *fakeNode {
	copy(n.data[0x438:], "\x53\xef")
	copy(n.data[0x45c:], "\x3c\x00\x00\x00\xc2\x02\x00\x00\x6b\x04\x00\x00")
	return n
}

// blank reports whether the whole disk is zeroes.
func (n *fakeNode) blank() bool { return bytes.Count(n.data, []byte{0}) == len(n.data) }
