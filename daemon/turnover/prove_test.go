// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
)

const (
	firstDisk = "/sys/devices/pci0000:00/0000:00:01.0"
	quarter   = diskSize / 4
)

// all is a disk that is read from one end to the other.
func all(name string) string {
	return fmt.Sprintf("%[1]s 0, %[1]s %[2]d, %[1]s %[3]d, %[1]s %[4]d", name, quarter, 2*quarter, 3*quarter)
}

// forget lets the daemon end, and with it all that it knew of disks.
func (b *bench) forget() {
	b.t.Helper()
	b.stop()
	b.ok(os.RemoveAll(b.state))
}

// plugged lets the first disk come, with another diskseq.
func (b *bench) plugged(appearance int) {
	b.machine.Apply(mounts + disk(1, 1, appearance))
	synctest.Wait()
	clock.Pass(time.Second)
}

func (b *bench) unplugged() {
	b.machine.Unplug(firstDisk)
	synctest.Wait()
	clock.Pass(time.Second)
}

// evidence wants a disk to have this kind of evidence, and to be offered if it has any.
func (b *bench) evidence(name, kind string) {
	b.t.Helper()
	if s := b.status(name); s.Evidence.Kind != kind || (s.Healthy && s.Resource != "") != (kind != "") || (s.State == inventory.StateUnproven) != (kind == "") {
		b.t.Errorf("%s: evidence %+v, healthy %t, resource %q, %s: %s; want evidence %q", name, s.Evidence, s.Healthy, s.Resource, s.State, s.Reason, kind)
	}
}

// TestDiskIsReadOnce: in full before it is offered the first time. After that a probe is enough at each plug, also after
// a restart.
func TestDiskIsReadOnce(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.forget()
		b.begin()
		b.evidence("nvme1n1", inventory.Blank)
		if read := b.reads(); read != all("nvme1n1") {
			t.Errorf("read: %q", read)
		}
		clock.Pass(time.Second)
		b.lookedAt("nvme1n1")
		b.unplugged()
		b.plugged(8)
		b.evidence("nvme1n1", inventory.Blank)
		if probes, _ := b.lookedAt("nvme1n1"); probes == 0 {
			t.Error("it is offered without a look")
		}
		b.crash()
		b.evidence("nvme1n1", inventory.Blank)
		b.unplugged()
		b.machine.Apply(mounts + strings.ReplaceAll(disk(2, 1, 9), "wwid=eui.21", "wwid=eui.11")) // another slot
		clock.Pass(time.Second)
		b.evidence("nvme1n1", inventory.Blank)
		if read := b.reads(); read != "" {
			t.Errorf("read again: %q", read)
		}
		b.want("nvme1n1", "", "")
	})
}

// TestHiddenData: data that a probe does not find is found by the full read. The disk is not offered, and never erased.
func TestHiddenData(t *testing.T) {
	for _, care := range []turnover.Care{zeroAtStart, zeroAfter, always, nothing} {
		play(t, disk(1, 1, 7), care, func(b *bench) {
			b.forget()
			b.hide("nvme1n1", 3*quarter+4096)
			b.begin()
			b.evidence("nvme1n1", "")
			const why = "unproven: unknown data at byte 397312; metalplugctl adopt nvme-eui.11 erases and offers it"
			b.want("nvme1n1", "", why)
			clock.Pass(24 * time.Hour)
			b.crash()
			clock.Pass(24 * time.Hour)
			b.want("nvme1n1", "", why)
			b.refused(b.allocate("A", "nvme1n1"), "not offered")
			b.reads()
			b.hide("nvme1n1", 0) // by whoever wrote there; what else he has written is not known
			clock.Pass(time.Hour)
			b.evidence("nvme1n1", inventory.Blank)
			if read := b.reads(); !strings.HasSuffix(read, all("nvme1n1")) {
				t.Errorf("read: %q", read)
			}
		})
	}
}

// TestFoundDataStaysFound: random places of a probe may hit the data that a read has found, or not. The disk is not read from
// its beginning for that.
func TestFoundDataStaysFound(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.forget()
		b.hide("nvme1n1", 3*quarter+4096)
		b.begin()
		b.evidence("nvme1n1", "")
		b.reads()
		for _, content := range []string{"unknown data", ""} {
			b.write("nvme1n1", content)
			b.inventory.LookAgain(idOf("nvme1n1"))
			clock.Pass(time.Minute)
			b.evidence("nvme1n1", "")
		}
		b.want("nvme1n1", "", "unproven: unknown data at byte 397312; metalplugctl adopt nvme-eui.11 erases and offers it")
		if read := b.reads(); strings.Contains(read, "nvme1n1 0") {
			t.Errorf("read: %q", read)
		}
	})
}

// TestProbeEndsEvidence: what is found on a disk that no pod holds is nobody's here, also when it is gone again.
func TestProbeEndsEvidence(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.evidence("nvme1n1", inventory.Blank)
		b.write("nvme1n1", "somebody's ext4")
		b.unplugged()
		b.plugged(8)
		b.want("nvme1n1", "", adoptable("somebody's"))
		b.evidence("nvme1n1", "")
		b.write("nvme1n1", "")
		b.inventory.LookAgain(idOf("nvme1n1"))
		b.evidence("nvme1n1", inventory.Blank)
		if read := b.reads(); read != all("nvme1n1") {
			t.Errorf("read: %q", read)
		}
	})
}

// TestReadGoesOn where it was after a crash, and after an error.
func TestReadGoesOn(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.forget()
		slice := 0
		b.meanwhile("survey", func(context.Context) error {
			if slice++; slice == 3 {
				return errors.New("I/O error")
			}
			return nil
		})
		b.begin()
		b.want("nvme1n1", "", "unproven: the read fails at byte 262144: I/O error; metalplugctl adopt nvme-eui.11 erases and offers it")
		clock.Pass(time.Second)
		b.crash()
		b.evidence("nvme1n1", inventory.Blank)
		if read := b.reads(); read != all("nvme1n1") {
			t.Errorf("read: %q", read)
		}
	})
}

// TestReadShowsHowFarItIs, in the reason and not in the log each time.
func TestReadShowsHowFarItIs(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.forget()
		b.meanwhile("survey", func(context.Context) error { time.Sleep(4 * time.Second); return nil })
		b.begin()
		for _, percent := range []string{"0", "25", "50", "75"} {
			b.want("nvme1n1", "", "unproven: being read, "+percent+" %")
			clock.Pass(4 * time.Second)
		}
		b.want("nvme1n1", "", "")
	})
}

// TestReadWaits while a pod has another disk of the controller. Disks of other controllers are read side by side.
func TestReadWaits(t *testing.T) {
	play(t, disk(1, 2, 7)+disk(2, 1, 8), zeroAtStart, func(b *bench) {
		b.write("nvme1n2", "somebody's ext4")
		b.write("nvme2n1", "somebody's ext4")
		b.inventory.LookAgain(idOf("nvme1n2"), idOf("nvme2n1"))
		b.status("nvme1n2")
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.reads()
		b.write("nvme1n2", "")
		b.write("nvme2n1", "")
		b.inventory.LookAgain(idOf("nvme1n2"), idOf("nvme2n1"))
		clock.Pass(time.Hour)
		if s := b.status("nvme1n2"); s.Reason != "unproven: the read waits for a pod that uses its controller" {
			t.Errorf("%q", s.Reason)
		}
		b.evidence("nvme2n1", inventory.Blank)
		if read := b.reads(); read != all("nvme2n1") {
			t.Errorf("read: %q", read)
		}
		b.free("nvme1n1")
		clock.Pass(time.Minute)
		b.evidence("nvme1n2", inventory.Blank)
	})
}

// TestStateLost: nothing tells any more which pod had a disk. It is read and not erased.
func TestStateLost(t *testing.T) {
	for cordoned, spoil := range map[string]func(file string) error{
		"": os.Remove,
		"cordoned: it may have been before the state was lost: uncordon it if not; ": func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
	} {
		play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
			b.used("A", "nvme1n1")
			clock.Pass(time.Second)
			b.stop()
			b.owners = nil // and the kubelet has none either
			b.ok(spoil(filepath.Join(b.state, "state.json")))
			b.begin()
			clock.Pass(time.Hour)
			b.want("nvme1n1", "", cordoned+adoptable("A's"))
		})
	}
}

// TestOtherDataBeforeTheErasure: a disk that is plugged again before it was erased may hold anything.
func TestOtherDataBeforeTheErasure(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "and a restart": true} {
		t.Run(name, func(t *testing.T) {
			play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
				b.used("A", "nvme1n1")
				b.unplugged()
				b.write("nvme1n1", "") // as the probe sees it
				b.hide("nvme1n1", quarter+8192)
				b.free("nvme1n1")
				clock.Pass(time.Minute)
				if restart {
					b.crash()
				}
				b.plugged(8)
				clock.Pass(time.Hour)
				b.want("nvme1n1", "", "unproven: unknown data at byte 139264; metalplugctl adopt nvme-eui.11 erases and offers it")
				if s := b.status("nvme1n1"); s.Dirty || s.Pods != nil {
					t.Errorf("it counts as a pod's: %+v", s)
				}
			})
		})
	}
}

// TestAnotherDiskWhileWeErase: the helper is stuck in its erasure, the disk is pulled, and another with the same identity
// comes. Then the helper fails, or answers for the disk that is gone. The other is not erased.
func TestAnotherDiskWhileWeErase(t *testing.T) {
	for _, method := range []string{turnover.None, turnover.Auto} {
		t.Run(method, func(t *testing.T) {
			care := zeroAfter
			care.Method = method
			play(t, disk(1, 1, 7), care, func(b *bench) {
				b.used("A", "nvme1n1")
				stuck := make(chan struct{})
				b.meanwhile("erase", func(context.Context) error { <-stuck; return nil })
				b.free("nvme1n1")
				synctest.Wait()
				b.unplugged()
				b.write("nvme1n1", "somebody's ext4")
				b.plugged(8)
				b.meanwhile("erase", nil)
				close(stuck)
				synctest.Wait()
				b.did()
				clock.Pass(time.Hour)
				if did := b.did(); strings.Contains(did, "erase") || b.content["nvme1n1"] == "" {
					t.Errorf("the helpers were asked for %q", did)
				}
				if s := b.status("nvme1n1"); s.Healthy && s.Resource != "" {
					t.Error("it is offered")
				}
			})
		})
	}
}

// TestStartErasesOnlyWhatAPodHasLeft: nothing before the first pod, and the data of the one before every other.
func TestStartErasesOnlyWhatAPodHasLeft(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller", "")
		if s := b.status("nvme1n1"); s.Evidence.Kind != "" || s.State != inventory.StateInUse {
			t.Errorf("%+v", s)
		}
		b.hide("nvme1n1", 4096) // of the pod, where no probe sees it
		b.free("nvme1n1")
		b.want("nvme1n1", "", "") // offered, since it is erased for the next, and not read
		if read := b.reads(); read != "" {
			t.Errorf("read: %q", read)
		}
		b.ok(b.allocate("B", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero", "")
	})
}

// TestBlankLeftover: a pod has left nothing that a probe sees. What is there later is not the pod's.
func TestBlankLeftover(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.free("nvme1n1")
		b.want("nvme1n1", "reset nvme1n1 nvme-controller", "")
		b.ok(b.allocate("B", "nvme1n1"))
		b.write("nvme1n1", "somebody's ext4") // a moment ago
		b.refused(b.start("nvme1n1"), "somebody's ext4 is on it")
		b.want("nvme1n1", "", "")
		b.free("nvme1n1")
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", adoptable("somebody's"))
	})
}

// TestErasedIsEvidence after a release, in each later plug.
func TestErasedIsEvidence(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.used("A", "nvme1n1")
		b.free("nvme1n1")
		b.want("nvme1n1", "erase nvme1n1 zero", "")
		b.evidence("nvme1n1", inventory.Erased)
		b.unplugged()
		b.plugged(8)
		b.evidence("nvme1n1", inventory.Erased)
		b.crash()
		b.evidence("nvme1n1", inventory.Erased)
		if read := b.reads(); read != "" {
			t.Errorf("read: %q", read)
		}
	})
}

// TestUdevIsBehind: a pod has made a file system, and udevd has not inspected the disk since its erasure. The erasure stays
// evidence: the disk is not read again, and it is offered once udevd agrees. What a probe finds as well ends the evidence.
func TestUdevIsBehind(t *testing.T) {
	known := mounts + strings.ReplaceAll(disk(1, 1, 7), "E: DEVTYPE=disk\n", "E: DEVTYPE=disk\nE: ID_FS_TYPE=ext4\n")
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.used("A", "nvme1n1")
		b.write("nvme1n1", "ext4")
		b.machine.Apply(known)
		b.free("nvme1n1")
		clock.Pass(time.Second)
		b.want("nvme1n1", "erase nvme1n1 zero", "unproven: udev found ID_FS_TYPE=ext4, which is not on it any more; run \"udevadm trigger "+
			firstDisk+"/nvme/nvme1/nvme1n1\" if this stays")
		b.machine.Apply(mounts + disk(1, 1, 7))
		clock.Pass(time.Second)
		b.want("nvme1n1", "", "")
		b.evidence("nvme1n1", inventory.Erased)
		if read := b.reads(); read != "" {
			t.Errorf("read: %q", read)
		}
		b.write("nvme1n1", "somebody's ext4")
		b.machine.Apply(known)
		clock.Pass(time.Second)
		b.evidence("nvme1n1", "")
	})
}

// adopt lets the operator adopt the first disk.
func (b *bench) adopt(scrub string) error {
	_, err := b.turnover.Adopt(context.Background(), idOf("nvme1n1"), scrub)
	return err
}

func TestAdopt(t *testing.T) {
	for _, c := range []struct {
		name, scrub string
		care        turnover.Care
		erased      string
	}{
		{"by the scrub of its resource", "", zeroAfter, "erase nvme1n1 zero"},
		{"by another", "discard", zeroAfter, "erase nvme1n1 discard"},
		{"where the resource has none", "", nothing, "erase nvme1n1 zero"},
		{"where it is erased at the start", "", zeroAtStart, "erase nvme1n1 zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7), c.care, func(b *bench) {
				b.write("nvme1n1", "somebody's ext4")
				b.inventory.LookAgain(idOf("nvme1n1"))
				b.want("nvme1n1", "", adoptable("somebody's"))
				b.ok(b.adopt(c.scrub))
				b.want("nvme1n1", c.erased, "")
				b.evidence("nvme1n1", inventory.Adopted)
				clock.Pass(time.Second)
				b.crash()
				b.unplugged()
				b.plugged(8)
				b.evidence("nvme1n1", inventory.Adopted)
				b.want("nvme1n1", "", "")
				if read := b.reads(); read != "" {
					t.Errorf("read: %q", read)
				}
			})
		})
	}
}

// TestAdoptionThatIsCutShort goes on until it is done: after a crash, after an error, and while a process has the disk open.
func TestAdoptionThatIsCutShort(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.write("nvme1n1", "somebody's ext4")
		b.inventory.LookAgain(idOf("nvme1n1"))
		b.status("nvme1n1")
		b.fails("erase", errMedia)
		b.ok(b.adopt(""))
		b.want("nvme1n1", "erase nvme1n1 zero", "unproven: adopted, and not erased yet: zero nvme-eui.11: "+errMedia.Error())
		b.opens("nvme1n1", "") // or the next daemon erases it at once
		b.fails("erase", nil)
		b.crash()
		b.did()
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", "unproven: adopted, and not erased yet: device busy: this host has it open (dd, pid 7)")
		b.opens("nvme1n1")
		clock.Pass(time.Minute)
		b.want("nvme1n1", "erase nvme1n1 zero", "")
		b.evidence("nvme1n1", inventory.Adopted)
	})
}

// TestAdoptionEndsWithThePlug: the operator has seen another disk.
func TestAdoptionEndsWithThePlug(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.write("nvme1n1", "somebody's ext4")
		b.inventory.LookAgain(idOf("nvme1n1"))
		b.status("nvme1n1")
		b.opens("nvme1n1", "")
		b.fails("holders", errMedia)
		b.refused(b.adopt(""), errMedia.Error())
		b.fails("holders", nil)
		b.opens("nvme1n1")
		b.fails("erase", errMedia)
		b.ok(b.adopt(""))
		synctest.Wait()
		b.unplugged()
		b.write("nvme1n1", "another's ext4")
		b.fails("erase", nil)
		b.plugged(8)
		b.did()
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", adoptable("another's"))
	})
}

// TestAdoptionEndsWithTheContent: the erasure of an adopted disk fails, and the operator uses the disk on the host instead.
func TestAdoptionEndsWithTheContent(t *testing.T) {
	mounted := "F: /proc/self/mountinfo=36 35 259:17 / /srv rw - xfs /dev/nvme1n1 rw\n\n"
	for _, c := range []struct {
		name, content string
		mounts        bool
	}{
		{"that is mounted", "new xfs", true},
		{"that was never mounted", "new xfs", false},
		{"as before, which is mounted", "", true},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("content %s, crash %t", c.name, crash), func(t *testing.T) {
				play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
					b.forget()
					b.write("nvme1n1", "old ext4")
					b.meanwhile("survey", func(context.Context) error { return errMedia })
					b.begin()
					b.status("nvme1n1")
					b.fails("erase", fmt.Errorf("%w: not now", turnover.ErrUnfit))
					if crash {
						b.fails("erase", errMedia) // the content is another for it
					}
					b.ok(b.adopt(""))
					clock.Pass(time.Minute)
					if c.content != "" {
						b.write("nvme1n1", c.content)
					}
					used := b.content["nvme1n1"]
					if c.mounts {
						b.machine.Apply(mounted + disk(1, 1, 7))
					}
					b.opens("nvme1n1", "")
					b.fails("erase", nil)
					clock.Pass(time.Minute)
					if crash {
						b.crash()
					}
					b.did()
					b.machine.Apply(mounts + disk(1, 1, 7))
					b.opens("nvme1n1")
					clock.Pass(time.Hour)
					if did := b.did(); did != "" || b.content["nvme1n1"] != used {
						t.Errorf("the helpers were asked for %q; %q is on the disk, want %q", did, b.content["nvme1n1"], used)
					}
					if s := b.status("nvme1n1"); s.Evidence.Scrub != "" {
						t.Errorf("evidence %+v", s.Evidence)
					}
				})
			})
		}
	}
}

func TestAdoptRefuses(t *testing.T) {
	for _, c := range []struct {
		name, id string
		text     string // of the machine
		before   func(b *bench)
		want     string
		is       error
	}{
		{"an unknown ID", "nvme-eui.99", "", nil, "no such device", inventory.ErrUnknownDevice},
		{"one that a pod holds", "", "", func(b *bench) { b.ok(b.allocate("A", "nvme1n1")) }, "a pod holds it", turnover.ErrBusy},
		{"one that a process has open", "", "", func(b *bench) {
			b.write("nvme1n1", "ext4")
			b.inventory.LookAgain(idOf("nvme1n1"))
			b.opens("nvme1n1", "")
		}, "this host has it open (dd, pid 7)", turnover.ErrBusy},
		{"one that is mounted", "", "", func(b *bench) {
			b.machine.Apply("F: /proc/self/mountinfo=36 35 259:17 / /srv rw - ext4 /dev/nvme1n1 rw\n\n" + disk(1, 1, 7))
			b.inventory.LookAgain(idOf("nvme1n1"))
		}, "nvme1n1 is mounted on /srv", turnover.ErrBusy},
		{"no disk", idOf("widget0"), widgets, nil, "it is not a disk", turnover.ErrUnfit},
		{"one that is gone", "", "", func(b *bench) { b.ok(b.allocate("A", "nvme1n1")); b.unplugged() }, "gone", device.ErrGone},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7)+c.text, zeroAfter, func(b *bench) {
				if c.before != nil {
					c.before(b)
				}
				synctest.Wait()
				id := c.id
				if id == "" {
					id = idOf("nvme1n1")
				}
				_, err := b.turnover.Adopt(context.Background(), id, "")
				b.refused(err, c.want)
				if !errors.Is(err, c.is) {
					t.Errorf("%v is not %v", err, c.is)
				}
				clock.Pass(time.Hour)
				if did := b.did(); did != "" {
					t.Errorf("the helpers were asked for %q", did)
				}
			})
		})
	}
}

// TestAdoptWhatIsOffered: there is nothing to do.
func TestAdoptWhatIsOffered(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		note, err := b.turnover.Adopt(context.Background(), idOf("nvme1n1"), "")
		if b.ok(err); note != "it is offered already: its evidence is blank" {
			t.Errorf("%q", note)
		}
		b.want("nvme1n1", "", "")
	})
}

// TestAdoptThatCannotBeKept has done nothing.
func TestAdoptThatCannotBeKept(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.write("nvme1n1", "somebody's ext4")
		b.inventory.LookAgain(idOf("nvme1n1"))
		b.status("nvme1n1")
		clock.Pass(time.Second)
		b.full()
		b.refused(b.adopt(""), "keep the adoption")
		b.room()
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", adoptable("somebody's"))
	})
}

// TestSizeThatChanges ends the evidence: what is behind the old end was never read.
func TestSizeThatChanges(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.evidence("nvme1n1", inventory.Blank)
		b.grow(2 * diskSize)
		b.hide("nvme1n1", diskSize+4096)
		b.inventory.LookAgain(idOf("nvme1n1"))
		b.want("nvme1n1", "", "unproven: unknown data at byte 528384; metalplugctl adopt nvme-eui.11 erases and offers it")
	})
}

// TestTwins: two disks claim one identity. When the one that was read has gone, the other is not taken for it, and data that
// only a full read finds is not given away.
func TestTwins(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.forget()
		b.begin()
		b.evidence("nvme1n1", inventory.Blank)
		b.hide("nvme2n1", 3*quarter+4096)
		b.machine.Apply(mounts + disk(1, 1, 7) + strings.NewReplacer("wwid=eui.21", "wwid=eui.11", "serial=S2", "serial=S1").Replace(disk(2, 1, 8)))
		synctest.Wait()
		clock.Pass(time.Hour)
		b.unplugged()
		clock.Pass(time.Hour)
		snapshot, _ := b.inventory.Snapshot()
		for s := range snapshot.All() {
			if s.Present && strings.HasSuffix(s.Device.SysPath, "/nvme2n1") && (s.Healthy || s.Evidence.Kind != "") {
				t.Errorf("%s is offered for its twin: %+v", s.Device.ID, s.Evidence)
			}
		}
		if did := b.did(); strings.Contains(did, "erase") {
			t.Errorf("did %q", did)
		}
	})
}

// TestOtherWayToADiskOfAPod: while a pod has a disk a second way to it appears, and this host mounts that or not. Nothing is erased
// when the pod has gone, and the disk is not offered by either way.
func TestOtherWayToADiskOfAPod(t *testing.T) {
	both := disk(1, 1, 7) + strings.NewReplacer("wwid=eui.21", "wwid=eui.11", "serial=S2", "serial=S1").Replace(disk(2, 1, 8))
	for _, table := range []string{mounts, "F: /proc/self/mountinfo=36 25 259:33 / /srv rw - xfs /dev/nvme2n1 rw\\n\n\n"} {
		play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
			b.used("A", "nvme1n1")
			b.machine.Apply(table + both)
			synctest.Wait()
			clock.Pass(time.Minute)
			b.free("nvme1n1")
			clock.Pass(time.Hour)
			if did := b.did(); strings.Contains(did, "erase") {
				t.Errorf("did %q", did)
			}
			snapshot, _ := b.inventory.Snapshot()
			for s := range snapshot.All() {
				if s.Present && s.Healthy {
					t.Errorf("%s is offered", s.Device.SysPath)
				}
			}
		})
	}
}

// wrote lets the kernel count so many sectors that were written to the first disk since it appeared. No event tells of it.
func (b *bench) wrote(sectors int) {
	b.machine.SetAttr(firstDisk+"/nvme/nvme1/nvme1n1", "stat", fmt.Sprintf("9 0 72 1 %d 0 %d 1 0 2 2 0 0 0 0 0 0", sectors, sectors))
}

// TestWrittenByAnother: a process of this host writes between the places of the quick check to a disk that was read, or that has
// what a pod left. That is not given away, nor erased as the pod's.
func TestWrittenByAnother(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.evidence("nvme1n1", inventory.Blank)
		b.hide("nvme1n1", quarter+4096)
		b.wrote(8)
		b.inventory.LookAgain(idOf("nvme1n1"))
		clock.Pass(time.Minute)
		b.evidence("nvme1n1", "")
		b.wrote(16)
		b.hide("nvme1n1", 0)
		clock.Pass(time.Hour)
		b.evidence("nvme1n1", inventory.Blank)
	})
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.left("nvme1n1")
		b.want("nvme1n1", "", "")
		b.wrote(8)
		b.inventory.LookAgain(idOf("nvme1n1"))
		b.want("nvme1n1", "", adoptable("Z's"))
	})
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) { // what pods write and what erasures write is not another's
		b.meanwhile("erase", func(context.Context) error { b.wrote(1024 + 4096); return nil })
		b.used("A", "nvme1n1")
		b.wrote(4096)
		b.free("nvme1n1")
		clock.Pass(time.Hour)
		b.want("nvme1n1", "erase nvme1n1 zero", "")
		b.inventory.LookAgain(idOf("nvme1n1"))
		b.evidence("nvme1n1", inventory.Erased)
	})
	for c := range 8 { // while a part of it is read, with and without a look before the end of that
		play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
			b.forget()
			n := 0
			b.meanwhile("survey", func(context.Context) error {
				if n++; n == c/2+1 {
					b.hide("nvme1n1", 4096)
					b.wrote(8)
					if c%2 == 1 {
						b.inventory.LookAgain(idOf("nvme1n1"))
						clock.Pass(time.Second)
					}
				}
				return nil
			})
			b.begin()
			clock.Pass(time.Hour)
			b.evidence("nvme1n1", "")
		})
	}
}

// TestWipedAfterAPod: a resource does not erase. What a pod has left keeps its disk from the next until the operator has
// wiped it, and the disk is read.
func TestWipedAfterAPod(t *testing.T) {
	play(t, disk(1, 1, 7), nothing, func(b *bench) {
		b.used("A", "nvme1n1")
		b.free("nvme1n1")
		clock.Pass(time.Hour)
		if s := b.status("nvme1n1"); s.Healthy || !strings.Contains(s.Reason, "metalplugctl adopt") {
			t.Errorf("healthy %v: %s", s.Healthy, s.Reason)
		}
		b.write("nvme1n1", "")
		b.inventory.LookAgain(idOf("nvme1n1"))
		clock.Pass(time.Hour)
		b.evidence("nvme1n1", inventory.Blank)
	})
}
