// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

// resetOf0 is the request to reset disk0.
func resetOf0(method string) Request {
	return Request{Do: Prepare, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")}, Work: device.Work{Method: method}, TimeoutMS: minute}
}

const resetIoctl = "ioctl nvme0 0x4e44 0000000000000000"

func TestControllerReset(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *machine, n *fakeNode, r *Request)
		want   Answer
		calls  []string
	}{
		{"alone", func(m *machine, n *fakeNode, r *Request) {}, Answer{Result: OK, Report: device.Report{Done: "reset NVMe controller nvme0 with 1 namespaces"}}, []string{resetIoctl}},
		{"with what a pod has left", func(m *machine, n *fakeNode, r *Request) { n.ext4(); r.Tenant = true }, Answer{Result: OK, Report: device.Report{Done: "reset NVMe controller nvme0 with 1 namespaces"}}, []string{resetIoctl}},
		{
			"with what no pod has left", func(m *machine, n *fakeNode, r *Request) { n.ext4(); r.Fingerprint = Blank },
			Answer{Result: Foreign, Detail: "nvme0n1 holds unknown data at byte 0; if the data is not needed, erase the disk manually: metalplugctl reset ID --scrub zero", Report: device.Report{Content: "unknown data at byte 0"}},
			nil,
		},
		{"a second namespace", func(m *machine, n *fakeNode, r *Request) { m.disk(secondPath, "259:4", "eui.02").fill() }, Answer{Result: Refused, Detail: "nvme0n2 would also be affected, and the request does not list this disk as a disk without a pod"}, nil},
		{"a second namespace, vouched for", func(m *machine, n *fakeNode, r *Request) {
			m.disk(secondPath, "259:4", "eui.02").fill() // the reset must not affect this disk
			r.Together = []string{secondPath}
		}, Answer{Result: OK, Report: device.Report{Done: "reset NVMe controller nvme0 with 2 namespaces"}}, []string{resetIoctl}},
		{"a second namespace, mounted", func(m *machine, n *fakeNode, r *Request) {
			m.disk(secondPath, "259:4", "eui.02")
			m.files(map[string]string{"/proc/1/mountinfo": "22 1 259:4 / / rw - ext4 /dev/nvme0n2 rw\n"})
			r.Together = []string{secondPath}
		}, Answer{Result: Busy, Detail: "nvme0n2 is mounted on /"}, nil},
		{"a second namespace, attached to another host", func(m *machine, n *fakeNode, r *Request) {
			m.disk(secondPath, "259:4", "eui.02").nsid = 2
			m.files(map[string]string{controller0 + "/cntlid": "1\n"})
			(&sharer{of: 2, nmic: 1, attached: []uint16{1, 77}}).on(m)
			r.Together = []string{secondPath}
		}, Answer{Result: Busy, Detail: "nvme0n2 is shared: controller 77, which is not bound to this host's driver nvme, also has namespace 2; detach it there"}, nil},
		{
			"used", func(m *machine, n *fakeNode, r *Request) { n.busy = true },
			Answer{Result: Busy, Detail: "/dev/nvme0n1 cannot be opened exclusively: it is mounted, part of another device, or open elsewhere"},
			nil,
		},
		{"over a network", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{controller0 + "/transport": "rdma\n"})
		}, Answer{Result: Refused, Detail: "resource test/nvme (built in) does not select nvme0n1: not for containers: controller nvme0 is connected by rdma"}, nil},
		{"never comes back", func(m *machine, n *fakeNode, r *Request) {
			m.onIoctl = func(*fakeNode, uintptr, []byte) (int, error) { return -1, unix.ENETRESET }
		}, Answer{Result: Failed, Detail: "reset nvme0: the device did not come back; read the kernel log, then power the device off and on"}, []string{resetIoctl}},
		{"is reset already", func(m *machine, n *fakeNode, r *Request) {
			m.onIoctl = func(*fakeNode, uintptr, []byte) (int, error) { return -1, unix.EBUSY }
		}, Answer{Result: Busy, Detail: "reset nvme0: the device is already being reset, or its driver has disabled it"}, []string{resetIoctl}},
		{"no capability", func(m *machine, n *fakeNode, r *Request) {
			m.onIoctl = func(*fakeNode, uintptr, []byte) (int, error) { return -1, unix.EACCES }
		}, Answer{Result: Failed, Detail: "reset nvme0: permission denied: does metalplug-reset have CAP_SYS_ADMIN?"}, []string{resetIoctl}},
		{"another node", func(m *machine, n *fakeNode, r *Request) { m.nodes["/dev/nvme0"].node.number = "245:7" }, Answer{Result: Refused, Detail: "/dev/nvme0 is the node of another device: 245:7, not 245:0"}, nil},
		{"replaced under the same name and number, just before the reset", func(m *machine, n *fakeNode, r *Request) {
			r.TimeoutMS = 100
			m.nodes["/dev/nvme0"].opened = func() {
				m.files(map[string]string{disk0 + "/wwid": "eui.02\n", disk0 + "/diskseq": "10\n", controller0 + "/serial": "S2\n"})
			}
		}, Answer{Result: Refused, Detail: disk0 + ` is not the requested device: wwid is "eui.02", not "eui.01"`}, nil},
		{"by another name", func(m *machine, n *fakeNode, r *Request) { r.Method = "nvme-controller:x" }, Answer{Result: Refused, Detail: `invalid method "nvme-controller:x": ` + knownMethods}, nil},
		{"by erasing", func(m *machine, n *fakeNode, r *Request) { r.Method = "zero" }, Answer{Result: Refused, Detail: `invalid method "zero": ` + knownMethods}, nil},
		{"no port", func(m *machine, n *fakeNode, r *Request) { r.Method = "dfl-port" }, Answer{Result: Refused, Detail: "nvme0n1 is not a DFL port"}, nil},
		{"no VFIO", func(m *machine, n *fakeNode, r *Request) { r.Method = "vfio" }, Answer{Result: Refused, Detail: disk0 + " is not bound to a VFIO driver"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				r := resetOf0("nvme-controller")
				c.change(m, n, &r)
				m.expectReset(r, c.want, c.calls)
			})
		})
	}
}

// expectReset checks the answer to a request, and the calls that change something.
func (m *machine) expectReset(r Request, want Answer, calls []string) {
	m.Helper()
	if got := m.ask(r); !reflect.DeepEqual(got, want) || !slices.Equal(m.calls, calls) {
		m.Errorf("answer is %+v, it did %q\nwant %+v, %q", got, m.calls, want, calls)
	}
}

// TestComesBack checks that a reset ends when the same disk is present again, even if it has a new diskseq.
func TestComesBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  time.Duration // time until the device is present again
		wwid   string
		state  string
		want   Result
		detail string
	}{
		{"soon", 3 * time.Second, "eui.01", "live", OK, ""},
		{"never", time.Hour, "eui.01", "live", Gone, "nvme0n1 has not come back: " + disk0 + " does not exist"},
		{"another one", 3 * time.Second, "eui.02", "live", Refused, `wwid is "eui.02", not "eui.01"`},
		{"given up", 3 * time.Second, "eui.01", "dead", Failed, `controller nvme0 is "dead"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _ := oneNVMe(t)
				m.onIoctl = func(n *fakeNode, _ uintptr, _ []byte) (int, error) {
					away := m.root + "/away"
					m.nodes["/dev/nvme0n1"].seq = 10
					m.rename(m.root+disk0, away)
					m.files(map[string]string{"/away/wwid": c.wwid + "\n", "/away/diskseq": "10\n", controller0 + "/state": c.state + "\n"})
					time.AfterFunc(c.after, func() { m.rename(away, m.root+disk0) })
					return 0, nil
				}
				r := resetOf0("nvme-controller")
				r.Identity["diskseq"] = "9"
				began := time.Now()
				m.expect(r, c.want, c.detail)
				if took := time.Since(began); c.want == OK && (took < c.after || took > c.after+time.Second) || c.want != OK && took < r.Timeout() {
					t.Errorf("it took %v", took)
				}
				if !slices.Equal(m.calls, []string{resetIoctl}) {
					t.Errorf("it did %q", m.calls)
				}
			})
		})
	}
}

const (
	subsystem0  = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
	headPath    = subsystem0 + "/nvme0n1"
	function1   = "/sys/devices/pci0000:00/0000:00:1e.0/0000:03:00.0"
	controller1 = function1 + "/nvme/nvme1"
)

// twoPaths returns a machine with a disk that has two controllers.
func twoPaths(t *testing.T) (*machine, *fakeNode) {
	t.Helper()
	m := newMachine(t)
	m.controller(function0, "nvme0", "S1")
	m.controller(function1, "nvme1", "S1")
	n := m.disk(headPath, "259:8", "eui.09")
	m.files(map[string]string{
		subsystem0 + "/subsystem": in(subsystem0, "/sys/class/nvme-subsystem"), subsystem0 + "/nvme0": in(subsystem0, controller0),
		subsystem0 + "/nvme1": in(subsystem0, controller1), "/sys/class/nvme-subsystem/nvme-subsys0": in("/sys/class/nvme-subsystem", subsystem0),
	})
	for i, c := range []string{controller0, controller1} {
		hidden := c + "/nvme0c" + string(rune('0'+i)) + "n1"
		m.files(map[string]string{hidden + "/hidden": "1\n", hidden + "/subsystem": in(hidden, "/sys/class/block"), hidden + "/nsid": "1\n"})
	}
	return m, n
}

func TestControllersOfAMultipathDisk(t *testing.T) {
	m, _ := twoPaths(t)
	r := Request{Do: Prepare, Target: device.Target{SysPath: headPath, Class: "nvme", Identity: byWWID("eui.09")}, Work: device.Work{Method: "nvme-controller"}}
	if got := m.ask(r); got.Result != OK || !slices.Equal(m.calls, []string{resetIoctl, "ioctl nvme1 0x4e44 0000000000000000"}) {
		t.Errorf("answer is %+v, it did %q", got, m.calls)
	}
	r.Method = "pci"
	m.expect(r, Refused, "is reached by more than one PCI function")
}

const portPath = "/sys/devices/pci0000:00/0000:00:1f.0/0000:05:00.0/fpga_region/region0/dfl-port.0"

// port returns a machine with a DFL port.
func port(t *testing.T) (*machine, *fakeNode, Request) {
	t.Helper()
	m := newMachine(t)
	m.files(map[string]string{
		portPath + "/subsystem": in(portPath, "/sys/bus/platform"), portPath + "/driver": in(portPath, "/sys/bus/platform/drivers/dfl-port"),
		portPath + "/dev": "244:1\n", portPath + "/uevent": "MAJOR=244\nDEVNAME=dfl-port.0\n", portPath + "/afu_id": "0123456789abcdef\n",
	})
	m.selectsAll()
	n := m.node("/dev/dfl-port.0", "244:1", false)
	return m, n, Request{Do: Prepare, Target: device.Target{SysPath: portPath, Class: "fpga", Identity: map[string]string{"afu_id": "0123456789abcdef"}}, Work: device.Work{Method: "dfl-port"}}
}

func TestPortReset(t *testing.T) {
	const open, ioctl = "open dfl-port.0 for writing", "ioctl dfl-port.0 0xb640 0000000000000000"
	m, n, r := port(t)
	if got := m.ask(r); !reflect.DeepEqual(got, Answer{Result: OK, Report: device.Report{Done: "reset port dfl-port.0"}}) || !slices.Equal(m.calls, []string{open, ioctl}) {
		t.Errorf("answer is %+v, it did %q", got, m.calls)
	}
	if got := m.ask(Request{Do: Probe, Target: device.Target{SysPath: portPath, Class: "fpga"}}); !reflect.DeepEqual(got, Answer{Result: OK}) {
		t.Errorf("a look finds %+v", got)
	}
	m.onIoctl = func(*fakeNode, uintptr, []byte) (int, error) { return -1, unix.ETIMEDOUT }
	if got := m.ask(r); got.Result != Failed || got.Detail != "reset dfl-port.0: connection timed out" {
		t.Errorf("answer is %+v", got)
	}
	m.calls, n.busy = nil, true
	if got := m.ask(r); got.Result != Busy {
		t.Errorf("answer is %+v", got)
	}
	m.checkUntouched()
}

const (
	groupPath = "/sys/devices/virtual/vfio/12"
	address0  = "0000:02:00.0"
)

// vfioMachine returns a machine with a PCI function that is bound to VFIO.
func vfioMachine(t *testing.T) (*machine, *fakeNode) {
	t.Helper()
	m := newMachine(t)
	m.controller(function0, "nvme0", "S1")
	m.remove(function0 + "/nvme")
	m.files(map[string]string{
		function0 + "/driver": in(function0, "/sys/bus/pci/drivers/vfio-pci"), function0 + "/vendor": "0x1b36\n",
		function0 + "/iommu_group":                        in(function0, "/sys/kernel/iommu_groups/12"),
		"/sys/kernel/iommu_groups/12/devices/" + address0: in("/sys/kernel/iommu_groups/12/devices", function0),
		groupPath + "/subsystem":                          in(groupPath, "/sys/class/vfio"), groupPath + "/dev": "243:0\n", groupPath + "/uevent": "DEVNAME=vfio/12\n",
		"/sys/class/vfio/.": "", "/sys/bus/pci/drivers/vfio-pci/.": "",
	})
	group := m.node("/dev/vfio/12", "243:0", false)
	m.selectsAll()
	return m, group
}

func TestVFIOReset(t *testing.T) {
	byFunction := Request{Do: Prepare, Target: device.Target{SysPath: function0, Class: "node", Identity: map[string]string{"vendor": "0x1b36"}}, Work: device.Work{Method: "vfio"}}
	byGroup := Request{Do: Prepare, Target: device.Target{SysPath: groupPath, Class: "node", Identity: map[string]string{"dev": "243:0"}}, Work: device.Work{Method: "vfio"}}
	byPCI := functionRequest("pci")
	byPCI.Together = nil
	for name, r := range map[string]Request{"a function": byFunction, "a group": byGroup, "by its attribute": byPCI} {
		t.Run(name, func(t *testing.T) {
			m, _ := vfioMachine(t)
			if got := m.ask(r); got.Result != OK || !strings.Contains(got.Done, " reset of "+address0) {
				t.Errorf("answer is %+v", got)
			}
			want := []string{"open 12 for writing", writeReset}
			if !slices.Equal(m.calls, want) {
				t.Errorf("it did %q\nwant %q", m.calls, want)
			}
			m.kernel.open, m.calls = busyAt(m, "/dev/vfio/12"), nil
			if got := m.ask(r); got.Result != Busy || got.Detail != "VFIO group 12 is open: a virtual machine or a pod uses it" {
				t.Errorf("in a virtual machine: %+v", got)
			}
			m.checkUntouched()
		})
	}
}

func TestVFIOResetAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *machine, group *fakeNode)
		want   Result
		detail string
	}{
		{"cannot", func(m *machine, group *fakeNode) { m.remove(function0 + "/reset") }, Unsupported, address0 + " has no reset method"},
		{"does not work", func(m *machine, group *fakeNode) {
			m.onWrite = func(string, string) error { return unix.ENOTTY }
		}, Unsupported, "reset " + address0 + ": no method works"},
		{"with virtual functions", func(m *machine, group *fakeNode) {
			m.files(map[string]string{function0 + "/sriov_numvfs": "2\n"})
		}, Refused, "has 2 virtual functions"},
		{"no group node", func(m *machine, group *fakeNode) { m.remove(groupPath) }, Unsupported, `VFIO group "12" has no node`},
		{"another driver by now", func(m *machine, group *fakeNode) {
			m.files(map[string]string{function0 + "/driver": in(function0, "/sys/bus/pci/drivers/nvme")})
		}, Refused, "is not bound to a VFIO driver"},
		{"virtual, beside a network interface", func(m *machine, group *fakeNode) {
			physical := function0[:len(function0)-1] + "1"
			m.files(map[string]string{
				function0 + "/reset_method": "device_specific\n",
				physical + "/subsystem":     in(physical, "/sys/bus/pci"), physical + "/net/eth0/address": "",
			})
		}, OK, ""},
		{"directories that cannot be listed", func(m *machine, group *fakeNode) { m.addDeepDirs(function0) }, Busy, "cannot determine whether " + address0 + " has a network interface: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, group := vfioMachine(t)
			c.change(m, group)
			r := Request{Do: Prepare, Target: device.Target{SysPath: function0, Class: "node", Identity: map[string]string{"vendor": "0x1b36"}}, Work: device.Work{Method: "vfio"}}
			m.expect(r, c.want, c.detail)
		})
	}
}

// busyAt makes every open of a node fail as busy, even an open without O_EXCL.
func busyAt(m *machine, node string) func(string, int) (int, error) {
	return func(path string, flags int) (int, error) {
		if strings.TrimPrefix(path, m.root) == node {
			return -1, unix.EBUSY
		}
		return m.openNode(path, flags)
	}
}

// functionRequest returns the request to reset the PCI function of disk0.
func functionRequest(method string) Request {
	return Request{Do: Prepare, Target: device.Target{SysPath: function0, Class: "node", Identity: map[string]string{"vendor": "0x1b36"}, Together: []string{disk0}}, Work: device.Work{Method: method}}
}

const (
	writeReset = `write "1" to ` + function0 + "/reset"
	writeFLR   = `write "flr" to ` + function0 + "/reset_method"
	writeBack  = `write "flr bus" to ` + function0 + "/reset_method"
)

func TestFunctionReset(t *testing.T) {
	ok := func(text string) Answer {
		return Answer{Result: OK, Report: device.Report{Done: "pci reset of " + address0 + " by " + text}}
	}
	fallen := Answer{Result: Gone, Detail: address0 + " has not come back: the PCI configuration space does not answer: the device has fallen off the bus"}
	for _, c := range []struct {
		name   string
		method string
		change func(m *machine, n *fakeNode, r *Request)
		want   Answer
		calls  []string
	}{
		{"first that works", "pci", func(m *machine, n *fakeNode, r *Request) {}, ok("flr or bus"), []string{writeReset}},
		{"chosen", "pci:flr", func(m *machine, n *fakeNode, r *Request) {}, ok("flr"), []string{writeFLR, writeReset, writeBack}},
		{"by the disk", "pci:flr", func(m *machine, n *fakeNode, r *Request) { *r = resetOf0("pci:flr") }, ok("flr"), []string{writeFLR, writeReset, writeBack}},
		{"by the disk, while another instance resets the function", "pci:flr", func(m *machine, n *fakeNode, r *Request) {
			*r = resetOf0("pci:flr")
			m.lockElsewhere(function0)
		}, Answer{Result: Busy, Detail: "another request for " + function0 + " is in progress"}, nil},
		{"no driver", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.remove(function0 + "/driver")
			m.remove(controller0)
			m.remove("/sys/block/nvme0n1")
		}, ok("flr or bus"), []string{writeReset}},
		{"controllers that cannot be listed", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.remove(function0 + "/nvme")
			m.remove("/sys/block/nvme0n1")
			m.files(map[string]string{function0 + "/nvme": "x"})
		}, Answer{Result: Busy, Detail: "cannot determine which disks are behind " + address0 + ": read " + function0 + "/nvme: not a directory"}, nil},
		{"before Linux 5.15", "pci", func(m *machine, n *fakeNode, r *Request) { m.remove(function0 + "/reset_method") }, ok("the kernel's choice"), []string{writeReset}},
		{"not offered", "pci:pm", func(m *machine, n *fakeNode, r *Request) {}, Answer{Result: Unsupported, Detail: address0 + ` is reset by "flr bus", not by "pm"`}, nil},
		{"no reset at all", "pci", func(m *machine, n *fakeNode, r *Request) { m.remove(function0 + "/reset") }, Answer{Result: Unsupported, Detail: address0 + " has no reset method"}, nil},
		{"a driver that does not survive", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{function0 + "/driver": in(function0, "/sys/bus/pci/drivers/mlx5_core")})
		}, Answer{Result: Refused, Detail: address0 + " is bound to mlx5_core, which would not survive a reset; unbind that driver first"}, nil},
		{"an RDMA device", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{function0 + "/driver": in(function0, "/sys/bus/pci/drivers/habanalabs"), function0 + "/infiniband/irdma0/.": ""})
		}, Answer{Result: Refused, Detail: address0 + " has an RDMA device, whose driver would not survive a reset; unbind that driver first"}, nil},
		{"virtual functions", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{function0 + "/sriov_numvfs": "4\n"})
		}, Answer{Result: Refused, Detail: address0 + " has 4 virtual functions, which would also be reset; remove them first"}, nil},
		{"a bridge", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.remove(function0 + "/driver")
			m.files(map[string]string{function0 + "/class": "0x060400\n"})
		}, Answer{Result: Refused, Detail: address0 + " is a bridge, and all devices behind it would also be reset"}, nil},
		{"a driver of network adapters", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{function0 + "/driver": in(function0, "/sys/bus/pci/drivers/ice"), function0 + "/net/eth0/flags": "0x1002\n"})
		}, Answer{Result: Refused, Detail: address0 + " is bound to ice, which would not survive a reset; unbind that driver first"}, nil},
		{"memory of the system", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{function0 + "/driver": in(function0, "/sys/bus/pci/drivers/cxl_pci")})
		}, Answer{Result: Refused, Detail: address0 + " is bound to cxl_pci, which would not survive a reset; unbind that driver first"}, nil},
		{"an interface that is up", "pci:flr", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{function0 + "/net/eth0/flags": "0x1003\n"})
		}, Answer{Result: Refused, Detail: network(address0)}, nil},
		{"an interface in another namespace", "pci:flr", func(m *machine, n *fakeNode, r *Request) { m.files(map[string]string{function0 + "/net/.": ""}) }, Answer{Result: Refused, Detail: network(address0)}, nil},
		{"an interface of an auxiliary device", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{function0 + "/habanalabs_cn.en.0/net/.": ""})
		}, Answer{Result: Refused, Detail: network(address0)}, nil},
		{"an interface of another function, on the bus", "pci", func(m *machine, n *fakeNode, r *Request) { m.sibling("0000:02:00.1", "net/.") }, Answer{Result: Refused, Detail: network("0000:02:00.1")}, nil},
		{"an interface of another device, on the bus", "pci:bus", func(m *machine, n *fakeNode, r *Request) { m.sibling("0000:02:03.0", "virtio0/net/.") }, Answer{Result: Refused, Detail: network("0000:02:03.0")}, nil},
		{"an interface of another function, before Linux 5.15", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.remove(function0 + "/reset_method")
			m.sibling("0000:02:00.1", "net/.")
		}, Answer{Result: Refused, Detail: network("0000:02:00.1")}, nil},
		{"an interface of another function, which is not hit", "pci:flr", func(m *machine, n *fakeNode, r *Request) { m.sibling("0000:02:00.1", "net/.") }, ok("flr"), []string{writeFLR, writeReset, writeBack}},
		{"a disk of another function", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.sibling("0000:02:00.1", "x")
			m.disk(path.Dir(function0)+"/0000:02:00.1/nvme0n9", "259:90", "eui.90")
		}, Answer{Result: Refused, Detail: "nvme0n9 would also be affected, and the request does not list this disk as a disk without a pod"}, nil},
		{"a disk that the request does not list", "pci", func(m *machine, n *fakeNode, r *Request) { r.Together = nil }, Answer{Result: Refused, Detail: "nvme0n1 would also be affected, and the request does not list this disk as a disk without a pod"}, nil},
		{
			"a disk that is used", "pci", func(m *machine, n *fakeNode, r *Request) { n.busy = true },
			Answer{Result: Busy, Detail: "/dev/nvme0n1 cannot be opened exclusively: it is mounted, part of another device, or open elsewhere"},
			nil,
		},
		{"does not work", "pci:flr", func(m *machine, n *fakeNode, r *Request) {
			m.onWrite = func(name, _ string) error {
				if strings.HasSuffix(name, "/reset") {
					return unix.EIO
				}
				return nil
			}
		}, Answer{Result: Failed, Detail: "reset " + address0 + ": input/output error"}, []string{writeFLR, writeReset, writeBack}},
		{"nothing works", "pci", func(m *machine, n *fakeNode, r *Request) {
			m.onWrite = func(string, string) error { return unix.ENOTTY }
		}, Answer{Result: Unsupported, Detail: "reset " + address0 + ": no method works: inappropriate ioctl for device"}, []string{writeReset}},
		{"does not answer afterwards", "pci", func(m *machine, n *fakeNode, r *Request) { m.fallsOff("active") }, fallen, []string{writeReset}},
		{"does not answer afterwards, and is suspended", "pci", func(m *machine, n *fakeNode, r *Request) { m.fallsOff("suspended") }, fallen, []string{writeReset}},
		{"another request", "pci", func(m *machine, n *fakeNode, r *Request) { m.lockElsewhere(function0) }, Answer{Result: Busy, Detail: "another request for " + function0 + " is in progress"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				m.files(map[string]string{function0 + "/vendor": "0x1b36\n"})
				m.selectsAll()
				r := functionRequest(c.method)
				c.change(m, n, &r)
				m.expectReset(r, c.want, c.calls)
			})
		})
	}
}

// fallsOff makes all reads of function0 return ones after its reset. The kernel shows this status of its power.
func (m *machine) fallsOff(status string) {
	m.onWrite = func(string, string) error {
		m.files(map[string]string{function0 + "/config": string(bytes.Repeat([]byte{0xff}, 64)), function0 + "/power/runtime_status": status + "\n"})
		return nil
	}
}

// network returns the error for a function with a network interface.
func network(address string) string {
	return address + " has a network interface, perhaps in another network namespace, which a reset of " + address0 + " would stop; unbind its driver first"
}

// sibling adds a function on the same bus as function0. It gives the function a file or directory, and adds the bridge above
// both functions.
func (m *machine) sibling(address, file string) {
	m.Helper()
	bus := path.Dir(function0)
	f := bus + "/" + address
	m.files(map[string]string{
		bus + "/subsystem": in(bus, "/sys/bus/pci"), f + "/subsystem": in(f, "/sys/bus/pci"), f + "/" + file: "",
	})
}

// addDeepDirs adds directories with a path that is too long for open, which therefore fails even for root.
func (m *machine) addDeepDirs(dir string) {
	m.Helper()
	root, err := os.OpenRoot(m.root + dir)
	if err != nil {
		m.Fatal(err)
	}
	defer root.Close()
	if err := root.MkdirAll(strings.Repeat(strings.Repeat("x", 255)+"/", 17), 0o755); err != nil {
		m.Fatal(err)
	}
}

// TestRootBus resets a function on a root bus. No method resets a root bus, so only the other functions in the same slot
// count.
func TestRootBus(t *testing.T) {
	const bus = "/sys/devices/pci0000:00/"
	m := newMachine(t)
	for _, f := range []string{"0000:00:03.0", "0000:00:03.1", "0000:00:04.0"} {
		m.files(map[string]string{bus + f + "/subsystem": in(bus+f, "/sys/bus/pci"), "/sys/bus/pci/.": ""})
	}
	for methods, want := range map[string][]string{
		"bus": {bus + "0000:00:03.0", bus + "0000:00:03.1"}, "": {bus + "0000:00:03.0", bus + "0000:00:03.1"}, "flr pm": {bus + "0000:00:03.0"},
	} {
		var got []string
		for _, f := range m.functionAt(bus + "0000:00:03.0").affectedFunctions(methods) {
			got = append(got, f.path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q hits %q, want %q", methods, got, want)
		}
	}
}
