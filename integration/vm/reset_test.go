//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"cmp"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
	"github.com/metalplug/metalplug/integration/vm"
)

// disks is a machine with drives and metalplug-reset, but without other programs of metalplug.
type disks struct{ m *vm.Machine }

// ask starts metalplug-reset in the machine with a request.
func (d disks) ask(t *testing.T, r reset.Request) reset.Answer {
	t.Helper()
	if r.TimeoutMS == 0 {
		r.TimeoutMS = time.Minute.Milliseconds()
	}
	if r.Do == reset.Prepare {
		r.Resource = "example.org/disk"
		d.m.Write("/tmp/metalplug.toml", d.configuration(r))
	}
	d.m.Write("/tmp/request", string(r.Encode()))
	began := time.Now()
	a, err := exchange.Decode[reset.Answer]([]byte(d.m.Sh("/opt/ask </tmp/request") + "\n")) // Sh removes the final newline
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s %s%s of %s: %s in %v: %s%s", r.Do, r.Method, r.Scrub, path.Base(r.SysPath), a.Result, time.Since(began), a.Detail, a.Done)
	return a
}

// configuration returns a configuration with a resource that selects all devices of a class and permits the requested
// work.
func (d disks) configuration(r reset.Request) string {
	method, scrub, match := cmp.Or(r.Method, "none"), cmp.Or(r.Scrub, "none"), "DEVTYPE = \"disk\""
	if scrub == "secure-discard" { // no resource can configure this method
		scrub = "none"
	}
	if r.Class == "node" {
		match = "SUBSYSTEM = \"vfio\""
	}
	return "[paths]\nrun = \"/run/asked\"\n[reset]\nsocket = \"direct\"\n[[resource]]\nname = \"example.org/disk\"\nclass = \"" + r.Class +
		"\"\nmatch = { " + match + " }\n[resource.reset]\nmethod = \"" + method + "\"\nscrub = \"" + scrub + "\"\n"
}

// request returns a request for the disk with a node.
func (d disks) request(node string, do reset.Do) reset.Request {
	attr := func(name string) string {
		return strings.TrimSpace(d.m.Sh("cat /sys/class/block/" + path.Base(node) + "/" + name))
	}
	return reset.Request{
		Do:     do,
		Target: device.Target{Class: "nvme", SysPath: strings.TrimSpace(d.m.Sh("readlink -f /sys/class/block/" + path.Base(node))), Identity: map[string]string{"wwid": attr("wwid"), "diskseq": attr("diskseq")}},
	}
}

// erase returns the request to erase a blank disk.
func (d disks) erase(node, scrub string) reset.Request {
	r := d.request(node, reset.Prepare)
	r.Scrub, r.ByHand, r.Fingerprint = scrub, true, reset.Blank
	return r
}

// reset returns the request to reset a blank disk.
func (d disks) reset(node, method string) reset.Request {
	r := d.request(node, reset.Prepare)
	r.Method, r.Fingerprint = method, reset.Blank
	return r
}

// acceptAnyContent changes a request to accept a disk with any content.
func acceptAnyContent(r reset.Request) reset.Request {
	r.Tenant, r.ByHand, r.Fingerprint = true, true, ""
	return r
}

// want checks the result and text of an answer.
func want(t *testing.T, a reset.Answer, result reset.Result, text string) {
	t.Helper()
	if a.Result != result || !strings.Contains(a.Detail+a.Done+a.Content, text) {
		t.Errorf("answer is %+v, want %v with %q", a, result, text)
	}
}

// fill writes noise to the whole disk, and returns its checksum.
func (d disks) fill(node string) string {
	d.m.Sh("udevadm lock --device " + node + " dd if=/dev/urandom of=" + node + " bs=1M oflag=direct 2>/dev/null || true; udevadm settle")
	return d.sum(node)
}

func (d disks) sum(node string) string {
	return strings.Fields(d.m.Sh("blockdev --flushbufs " + node + "; md5sum " + node))[0]
}

// TestReset tests metalplug-reset with NVMe drives and a real kernel.
func TestReset(t *testing.T) {
	m := vm.Boot(t, vm.Options{Drives: []vm.Drive{atBoot, heads}})
	m.Push(vm.Build(t, "cmd/metalplugctl", true), "/opt/metalplug-reset")
	m.Push(vm.Build(t, "cmd/metalplug-holders", true), "/opt/metalplug-holders")
	m.Push(vm.Build(t, "integration/vm/ask", true), "/opt/ask")
	d := disks{m}
	for _, step := range []struct {
		name string
		do   func(t *testing.T, d disks, node string)
	}{
		{"look", lookAtDisk},
		{"root disk", rootDisk},
		{"used", usedDisk},
		{"erase", eraseDisk},
		{"controller", resetController},
		{"function", resetFunction},
		{"two namespaces", twoNamespaces},
		{"not here", notByQEMU},
	} {
		m.Step(t, step.name, func(t *testing.T) { step.do(t, d, m.Namespaces()[atBoot.Serial]) })
	}
}

func lookAtDisk(t *testing.T, d disks, node string) {
	a := d.ask(t, d.request(node, reset.Probe))
	if a.Result != reset.OK || a.Content != "" || !a.Smart.Known || a.Smart.Warning != 0 || a.Smart.Temperature < 1 {
		t.Errorf("a blank disk is %+v", a)
	}
	d.m.Warn(atBoot, 4)
	if a := d.ask(t, d.request(node, reset.Probe)); a.Smart.Warning != 4 {
		t.Errorf("a sick disk is %+v", a)
	}
	d.m.Warn(atBoot, 0)
}

// rootDisk checks that no request changes the root disk.
func rootDisk(t *testing.T, d disks, _ string) {
	root := d.m.Namespaces()["BOOT0"]
	start := "blockdev --flushbufs " + root + "; head -c 1M " + root + " | md5sum"
	before := d.m.Sh(start)
	want(t, d.ask(t, d.request(root, reset.Probe)), reset.Busy, "is mounted on /")
	for _, method := range []string{"zero", "discard", "format"} {
		r := d.erase(root, method)
		r = acceptAnyContent(r)
		want(t, d.ask(t, r), reset.Busy, "is mounted on /")
	}
	r := d.reset(root, "nvme-controller")
	r = acceptAnyContent(r)
	want(t, d.ask(t, r), reset.Busy, "is mounted on /")
	if after := d.m.Sh(start); after != before {
		t.Error("the root disk has changed")
	}
}

// usedDisk checks every kind of use by the host, and every kind of content.
func usedDisk(t *testing.T, d disks, node string) {
	for _, c := range []struct {
		name, begin, end string
		result           reset.Result
		text             string
	}{
		{"mounted", "mkfs.ext4 -q NODE; mount NODE /mnt", "umount /mnt", reset.Busy, "is mounted on /mnt"},
		{"not mounted", "true", "true", reset.Foreign, "holds unknown data at byte"},
		{"partition mounted", "sh -c 'echo type=linux | sfdisk --quiet --wipe always --label gpt NODE'; udevadm settle; mkfs.ext4 -q NODEp1; mount NODEp1 /mnt", "umount /mnt", reset.Busy, "p1 is mounted on /mnt"},
		{"partition", "true", "sfdisk --quiet --delete NODE", reset.Foreign, "holds unknown data at byte"},
		{"LVM", "wipefs -qfa NODE; vgcreate -y -qq vg NODE; lvcreate -y -qq -Wn -Zn -l 1 -n lv vg", "vgchange -qq -an vg", reset.Busy, "is part of dm-"},
		{"LVM at rest", "true", "true", reset.Foreign, "holds LVM2_member"},
		{"LUKS", "wipefs -qfa NODE; echo secret | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 NODE -", "true", reset.Foreign, "holds crypto_LUKS"},
		{"swap", "wipefs -qa NODE; mkswap NODE; swapon NODE", "swapoff NODE", reset.Busy, "is swapped to"},
		{"swap at rest", "true", "true", reset.Foreign, "holds unknown data at byte"},
	} {
		replace := strings.NewReplacer("NODE", node)
		d.m.Sh(replace.Replace(c.begin) + " >/dev/null; udevadm settle")
		before := d.sum(node)
		for _, method := range []string{"zero", "discard", "format"} {
			t.Log(c.name)
			want(t, d.ask(t, d.erase(node, method)), c.result, c.text)
		}
		if c.result == reset.Busy {
			r := d.erase(node, "zero")
			r = acceptAnyContent(r)
			want(t, d.ask(t, r), c.result, c.text)
		} else if after := d.sum(node); after != before {
			t.Errorf("%s: the disk has changed", c.name)
		}
		d.m.Sh(replace.Replace(c.end) + " >/dev/null; udevadm settle")
	}
	d.m.Sh("blkdiscard -f " + node + "; udevadm settle")
}

func eraseDisk(t *testing.T, d disks, node string) {
	blank := strings.Fields(d.m.Sh("head -c $(blockdev --getsize64 " + node + ") /dev/zero | md5sum"))[0]
	for _, method := range []string{"zero", "discard", "format"} {
		full := d.fill(node)
		if full == blank {
			t.Fatal("nothing was written")
		}
		r := d.erase(node, method)
		want(t, d.ask(t, r), reset.Foreign, "holds unknown data at byte 0")
		if d.sum(node) != full {
			t.Fatal("the disk has changed")
		}
		r = acceptAnyContent(r)
		want(t, d.ask(t, r), reset.OK, "all read as zeroes")
		if d.sum(node) != blank {
			t.Errorf("%s has left something", method)
		}
		d.m.Sh("udevadm settle")
		if a := d.ask(t, d.request(node, reset.Probe)); a.Result != reset.OK || a.Content != "" {
			t.Errorf("after %s it is %+v", method, a)
		}
	}
	r := d.erase(node, "format")
	r.Identity["wwid"] += "0"
	want(t, d.ask(t, r), reset.Refused, "is not the requested device")
}

func resetController(t *testing.T, d disks, node string) {
	full := d.fill(node)
	r := d.reset(node, "nvme-controller")
	want(t, d.ask(t, r), reset.Foreign, "holds unknown data")
	r = acceptAnyContent(r)
	before := d.countResets(node)
	want(t, d.ask(t, r), reset.OK, "reset NVMe controller nvme")
	if after := d.countResets(node); after != before+1 {
		t.Errorf("the kernel has set the controller up %d times, before %d", after, before)
	}
	if d.sum(node) != full {
		t.Error("the disk has changed")
	}
}

// countResets returns how often the kernel has initialised the controller of a disk. Each time, it logs the number of queues.
func (d disks) countResets(node string) int {
	controller := path.Base(strings.TrimSpace(d.m.Sh("readlink -f /sys/class/block/" + path.Base(node) + "/device")))
	n, _ := strconv.Atoi(strings.TrimSpace(d.m.Sh("dmesg | grep -c 'nvme " + controller + ": .*queues' || true")))
	return n
}

func resetFunction(t *testing.T, d disks, node string) {
	full := d.sum(node)
	r := d.reset(node, "pci:flr")
	r = acceptAnyContent(r)
	function := path.Dir(path.Dir(path.Dir(r.SysPath)))
	listed := d.m.Sh("cat " + function + "/reset_method")
	want(t, d.ask(t, r), reset.OK, "by flr")
	if again := d.m.Sh("cat " + function + "/reset_method"); again != listed || d.sum(node) != full {
		t.Errorf("reset_method is %q, was %q; or the disk has changed", again, listed)
	}
	r.Method = "pci:pm"
	want(t, d.ask(t, r), reset.Unsupported, "not by \"pm\"")
}

// twoNamespaces checks methods on a drive with two namespaces, which are multipath heads. If a method affects the whole
// controller, the request must list both namespaces. A method for one namespace must not affect the other.
func twoNamespaces(t *testing.T, d disks, _ string) {
	both := strings.Fields(d.m.Sh("ls -d /sys/devices/virtual/nvme-subsystem/*/nvme*n*"))
	if len(both) != 2 {
		t.Fatalf("heads are %q", both)
	}
	first, second := "/dev/"+path.Base(both[0]), "/dev/"+path.Base(both[1])
	d.fill(first)
	d.fill(second)
	r := d.reset(first, "nvme-controller")
	r = acceptAnyContent(r)
	want(t, d.ask(t, r), reset.Refused, path.Base(second)+" would also be affected")
	r.Together = both
	want(t, d.ask(t, r), reset.OK, "with 2 namespaces")
	d.m.Sh("mkdir -p /mnt2; mkfs.ext4 -qF " + second + "; mount " + second + " /mnt2")
	want(t, d.ask(t, r), reset.Busy, path.Base(second)+" is mounted on /mnt2")
	d.m.Sh("umount /mnt2")
	kept := d.sum(second)
	r = d.erase(first, "format")
	r = acceptAnyContent(r)
	want(t, d.ask(t, r), reset.OK, "all read as zeroes")
	if d.sum(second) != kept {
		t.Error("the other namespace has changed")
	}
}

// notByQEMU checks that the helper does not report success for methods that the emulated controller lacks.
func notByQEMU(t *testing.T, d disks, node string) {
	for method, text := range map[string]string{"crypto-erase": "no cryptographic erasure", "sanitize": "no Sanitize command", "secure-discard": "not supported"} {
		r := d.erase(node, method)
		r = acceptAnyContent(r)
		want(t, d.ask(t, r), reset.Unsupported, text)
	}
}

// TestResetVFIO tests metalplug-reset with a VFIO device, behind an emulated IOMMU.
func TestResetVFIO(t *testing.T) {
	m := vm.Boot(t, vm.Options{
		Drives: []vm.Drive{atBoot}, Devices: []string{"intel-iommu,caching-mode=on"},
		// The parameter is needed because an emulated processor has no interrupt remapping.
		Kernel: "intel_iommu=on vfio_iommu_type1.allow_unsafe_interrupts=1",
	})
	m.Push(vm.Build(t, "cmd/metalplugctl", true), "/opt/metalplug-reset")
	m.Push(vm.Build(t, "cmd/metalplug-holders", true), "/opt/metalplug-holders")
	m.Push(vm.Build(t, "integration/vm/ask", true), "/opt/ask")
	d := disks{m}
	disk := d.request(m.Namespaces()[atBoot.Serial], reset.Probe)
	function := path.Dir(path.Dir(path.Dir(disk.SysPath)))
	address := path.Base(function)
	m.Sh("modprobe vfio-pci && echo vfio-pci >" + function + "/driver_override && echo " + address + " >" + function +
		"/driver/unbind && echo " + address + " >/sys/bus/pci/drivers_probe && udevadm settle")
	group := "/dev/vfio/" + path.Base(strings.TrimSpace(m.Sh("readlink "+function+"/iommu_group")))
	r := reset.Request{
		Do:     reset.Prepare,
		Target: device.Target{Class: "node", SysPath: function, Identity: map[string]string{"vendor": "0x1b36"}},
		Work:   device.Work{Method: "vfio"},
	}
	want(t, d.ask(t, r), reset.Refused, "does not select "+address) // the resource selects the VFIO group instead
	probe := r
	probe.Do, probe.Method = reset.Probe, ""
	want(t, d.ask(t, probe), reset.OK, "")
	byGroup := r
	byGroup.SysPath = "/sys/devices/virtual/vfio/" + path.Base(group)
	byGroup.Identity = map[string]string{"dev": strings.TrimSpace(m.Sh("cat " + byGroup.SysPath + "/dev"))}
	want(t, d.ask(t, byGroup), reset.OK, "pci reset of "+address)
	m.Sh("sleep 60 <>" + group + " >/dev/null 2>&1 & echo $! >/tmp/holder")
	want(t, d.ask(t, byGroup), reset.Busy, "is open: a virtual machine or a pod uses it")
	m.Sh("kill $(cat /tmp/holder)")
}
