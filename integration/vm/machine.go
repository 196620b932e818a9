//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Options configure a machine. The zero value is a machine with a boot disk on NVMe and empty slots.
type Options struct {
	// CPUs is 1 by default. More CPUs do not make the machine faster, because QEMU runs them in turn. If they ran in
	// parallel, a kernel that patches its own code would crash (int3).
	CPUs      int
	MemoryMiB int // default 1536
	Slots     int // hotplug slots ("slot1" ...), 8 by default
	Switches  int // PCIe switches, each with two more slots ("switch1-1", "switch1-2", "switch2-1" ...)
	// Drives are present at boot, in the first slots.
	Drives []Drive
	// Devices are additional -device arguments, and Objects the -object arguments to which they refer.
	Devices, Objects []string
	// Packages are additional Debian packages of the machine. Each combination has a separate image.
	Packages []string
	// Kernel is appended to the kernel's command line.
	Kernel string
	// Unhurried gives the machine a clock that advances by a nanosecond for each executed instruction. It follows this
	// host's clock only while the machine is idle (QEMU's -icount). Ten minutes on this host may be two minutes in the
	// machine. So a deadline allows as much work as on real hardware, even while this host is busy. The test waits
	// five times as long for the machine.
	Unhurried bool
	// BootTimeout is the maximum time until all units are started.
	BootTimeout time.Duration // default 5 min
}

// bootSerial is the serial number of the boot disk.
const bootSerial = "BOOT0"

// Machine is one booted guest. It is switched off when its test ends. It must not be used concurrently.
type Machine struct {
	t       testing.TB // the running test or step (see Step)
	dir     string     // directory of the sockets, the console log and the drives, which is removed with the test
	alive   io.Closer  // QEMU runs until this is closed
	exit    chan error // receives the result when QEMU ends
	qmp     *QMP
	guest   *guest
	slots   map[string]string // slot -> drive serial, "" is free
	hot     []Drive           // plugged in since the boot
	kubelet *Kubelet          // the last one that was started
	boot    time.Duration     // maximum duration of a boot
	slower  time.Duration     // how many times slower the machine's clock may be than this host's clock
	shell   net.Listener      // nil until QEMU runs (see listen)
}

// Boot starts a machine and returns when systemd has started all units. The test fails if the machine does not boot,
// and is skipped (see Need, "vm") if this host cannot build or run it.
func Boot(t *testing.T, o Options) *Machine {
	t.Helper()
	t.Parallel() // an emulated machine keeps one processor busy
	o.setDefaults()
	t.Cleanup(func() { told.note(t) })
	img, err := image(o.Packages)
	Need(t, "vm", err)
	m := &Machine{t: t, exit: make(chan error, 1), slots: make(map[string]string), boot: o.BootTimeout, slower: 1}
	if o.Unhurried {
		m.slower = 5
	}
	// not t.TempDir, which contains the name of the test, because the path of a socket must be short
	if m.dir, err = os.MkdirTemp(memory(), "vm"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(m.dir) })
	initrd, err := withAgent(filepath.Join(img, "initrd"), Build(t, "integration/vm/agent", true))
	if err == nil {
		err = os.WriteFile(m.path("initrd"), initrd, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.end)
	began := time.Now()
	if err = m.start(img, o); err == nil {
		err = m.listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := m.waitBooted(began.Add(o.BootTimeout)); err != nil {
		t.Fatalf("boot: %v", err)
	}
	t.Logf("machine booted in %v", time.Since(began).Round(100*time.Millisecond))
	return m
}

// memory returns the directory for the drives of a machine, in memory if possible. A disk of this host may hang for half a
// minute, for example with the mount option "discard" after a large deletion. The machine would then consider its drive
// dead. "" means [os.TempDir].
func memory() string {
	const dir, enough = "/dev/shm", 4 << 30 // number of bytes that must be free; the changes of the boot disk take a few hundred MiB
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) >= enough {
		return dir
	}
	return ""
}

func (o *Options) setDefaults() {
	def := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	def(&o.CPUs, 1)
	def(&o.MemoryMiB, 1536)
	def(&o.Slots, 8)
	if o.BootTimeout == 0 {
		o.BootTimeout = 5 * time.Minute
	}
}

// path returns the path of a file of the machine on this host.
func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }

// start runs QEMU and connects to its two sockets.
func (m *Machine) start(img string, o Options) error {
	args, err := m.arguments(img, o)
	if err != nil {
		return err
	}
	if err := m.run(args); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	qmp, err := m.dial("qmp")
	if err != nil {
		return err
	}
	if m.qmp, err = dialQMP(qmp); err != nil {
		return err
	}
	agent, err := m.dial("agent")
	if err != nil {
		return err
	}
	m.guest = newGuest(agent)
	return nil
}

// leash runs a command, and ends it when the other end of standard input is closed. So the command ends with this process,
// even if a signal kills this process.
const leash = `exec 3<&0; "$@" </dev/null & child=$!; { cat <&3 >/dev/null; kill "$child"; } & wait "$child"`

func (m *Machine) run(args []string) error {
	log, err := os.Create(m.path("qemu.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	c := exec.Command("sh", append([]string{"-c", leash, "leash", "nice", "qemu-system-x86_64"}, args...)...)
	c.Stdout, c.Stderr = log, log
	c.Env = append(os.Environ(), "TMPDIR="+m.dir) // QEMU writes the changes of the boot disk there
	alive, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	m.alive = alive
	go func() { m.exit <- c.Wait() }()
	return nil
}

// dial connects to a socket that QEMU is about to create.
func (m *Machine) dial(name string) (net.Conn, error) {
	deadline := time.Now().Add(30 * time.Second)
	for {
		conn, err := net.Dial("unix", m.path(name))
		if err == nil {
			return conn, nil
		}
		select {
		case exit := <-m.exit:
			m.exit <- exit
			return nil, fmt.Errorf("start QEMU: ended: %w", errors.Join(exit, errors.New(m.tail("qemu.log", 20))))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("connect to QEMU: %w", err)
		}
	}
}

// arguments returns QEMU's arguments. It does not use KVM even if there is a /dev/kvm. The tests must also run on hosts
// without KVM, and take equally long there.
func (m *Machine) arguments(img string, o Options) ([]string, error) {
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "qemu64,-svm",
		"-smp", fmt.Sprint(o.CPUs), "-m", fmt.Sprint(o.MemoryMiB),
		"-kernel", filepath.Join(img, "vmlinuz"), "-initrd", m.path("initrd"),
		"-append", strings.TrimSpace("console=ttyS0 panic=-1 mitigations=off systemd.show_status=1 " + o.Kernel),
		"-serial", "file:" + m.path("console"),
		"-qmp", "unix:" + m.path("qmp") + ",server=on,wait=off",
		"-device", "virtio-rng-pci",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,server=on,wait=off,path=" + m.path("agent"),
		"-device", "virtserialport,chardev=agent,name=" + agentPort,
		"-drive", "if=none,id=boot,format=raw,snapshot=on,cache=unsafe,file=" + filepath.Join(img, "disk.img"),
		"-device", "pcie-root-port,id=slot0,chassis=100,slot=100",
		"-device", "nvme,id=boot-nvme,drive=boot,bus=slot0,serial=" + bootSerial,
	}
	for i := 1; i <= o.Slots; i++ {
		slot := fmt.Sprintf("slot%d", i)
		m.slots[slot] = ""
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=%s,chassis=%d,slot=%d", slot, i, i))
	}
	for i := 1; i <= o.Switches; i++ {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=root%d,chassis=%d,slot=%d", i, 50+i, 50+i),
			"-device", fmt.Sprintf("x3130-upstream,id=switch%d,bus=root%d", i, i))
		for port := 1; port <= 2; port++ {
			slot := fmt.Sprintf("switch%d-%d", i, port)
			m.slots[slot] = ""
			args = append(args, "-device", fmt.Sprintf("xio3130-downstream,id=%s,bus=switch%d,chassis=%d,slot=%d", slot, i, 60+2*i+port, port))
		}
	}
	for _, d := range o.Drives {
		more, err := m.driveArguments(d)
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	for _, b := range o.Objects {
		args = append(args, "-object", b)
	}
	for _, d := range o.Devices {
		args = append(args, "-device", d)
	}
	if o.Unhurried {
		args = append(args, "-icount", "shift=0,sleep=on")
	}
	return args, nil
}

// waitBooted waits for the agent, for systemd and for udevd.
func (m *Machine) waitBooted(deadline time.Time) error {
	up := make(chan error, 1)
	go func() {
		r, err := m.guest.run(nil, time.Until(deadline), "systemctl", "is-system-running", "--wait")
		if err == nil && strings.TrimSpace(r.Stdout) != "running" {
			failed, _ := m.guest.run(nil, commandTimeout, "systemctl", "--failed", "--no-legend", "--plain")
			err = fmt.Errorf("system is %s\n%s", strings.TrimSpace(r.Stdout), failed.Stdout)
		}
		if err == nil {
			_, err = m.guest.run(nil, time.Until(deadline), "udevadm", "settle")
		}
		up <- err
	}()
	select {
	case err := <-up:
		return err
	case exit := <-m.exit:
		m.exit <- exit
		return fmt.Errorf("QEMU ended: %w", errors.Join(exit, errors.New(m.tail("qemu.log", 20))))
	}
}

// end switches the machine off and, after a failure, prints its last output.
func (m *Machine) end() {
	if m.alive == nil {
		return
	}
	if m.t.Failed() {
		told.recordPanic(m.t, m.tail("console", 200))
		m.t.Logf("QEMU:\n%s", m.tail("qemu.log", 20))
		m.t.Logf("console:\n%s", m.tail("console", 60))
		m.stay()
	}
	if m.guest != nil {
		m.keepLogs()
	}
	if m.shell != nil {
		_ = m.shell.Close() // an error has no effect
	}
	// An error only means that QEMU has already ended.
	_ = m.alive.Close()
	select {
	case <-m.exit:
	case <-time.After(30 * time.Second):
		m.t.Error("stop QEMU: still runs")
	}
}

// QMP returns the connection to QEMU, for commands that have no method here.
func (m *Machine) QMP() *QMP { return m.qmp }

// HostAddress is the address of this host in the network of PlugNetwork. A connection to it reaches the loopback address of
// this host.
const HostAddress = "10.0.2.2"

// PlugNetwork plugs in a network card with QEMU's user network, which needs no right on this host. It returns when the
// card has an address.
func (m *Machine) PlugNetwork() {
	m.t.Helper()
	slot, err := m.insert(Drive{Serial: "network"})
	if err == nil {
		err = m.qmp.Execute("netdev_add", map[string]any{"type": "user", "id": "network"}, nil)
	}
	if err == nil {
		err = m.qmp.Execute("device_add", map[string]any{"driver": "virtio-net-pci", "netdev": "network", "bus": slot, "romfile": ""}, nil)
	}
	if err != nil {
		m.t.Fatalf("plug the network: %v", err)
	}
	m.Eventually("a network card", time.Minute, func() bool {
		return m.Try("sh", "-c", "cd /sys/class/net && for card in e*; do ip address add 10.0.2.15/24 dev $card && ip link set $card up; done").Code == 0
	})
}
