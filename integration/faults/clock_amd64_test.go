// SPDX-License-Identifier: Apache-2.0

//go:build integration

package faults

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
)

// wallClock is clock_gettime as a process sees it after [killableDaemon.jump]. It adds the seconds after the code to the
// kernel's answer for the wall clock (clock 0). It uses the registers of the System V ABI for amd64.
//
// There is no version for arm64, which would need other instructions, the name __kernel_clock_gettime and another jump,
// because no such machine was available. The tested code does not depend on the architecture.
var wallClock = []byte{
	0xb8, 0xe4, 0, 0, 0, //       mov  eax, 228 (clock_gettime)
	0x0f, 0x05, //                syscall
	0x85, 0xff, //                test edi, edi
	0x75, 0x0a, //                jnz  ret
	0x48, 0x8b, 0x0d, 4, 0, 0, 0, // mov  rcx, [rip+4], which is the value after the code
	0x48, 0x01, 0x0e, //          add  [rsi], rcx
	0xc3, //                      ret
}

// jump changes the wall clock of the daemon only. To read the time, a Go program calls code that the kernel maps into
// each process (vdso(7)), and the code of one process can be replaced. The new code is placed in free space after the
// old code, which then begins with a jump to it. A thread that runs the old code at that time is not affected, unless
// it is inside the five bytes of that jump.
func (m *killableDaemon) jump(by time.Duration) {
	m.t.Helper()
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", m.cmd.Process.Pid), os.O_RDWR, 0)
	m.must(err)
	defer memory.Close()
	base, image := m.vdso(memory)
	file, err := elf.NewFile(bytes.NewReader(image))
	m.must(err)
	symbols, err := file.DynamicSymbols()
	m.must(err)
	at := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "__vdso_clock_gettime" })
	free := len(image)
	for free > 0 && image[free-1] == 0 {
		free--
	}
	free = (free + 63) / 64 * 64
	if at < 0 || free+len(wallClock)+8 > len(image) {
		m.t.Fatalf("the vDSO has no room behind its %d bytes, or no clock: %v", free, symbols)
	}
	code := binary.LittleEndian.AppendUint64(slices.Clone(wallClock), uint64(by/time.Second))
	_, err = memory.WriteAt(code, base+int64(free))
	m.must(err)
	entry := int64(symbols[at].Value)
	jump := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(int64(free)-entry-5)) // jmp, relative to the next instruction
	_, err = memory.WriteAt(jump, base+entry)
	m.must(err)
}

// vdso returns the address and the content of a process's vdso.
func (m *killableDaemon) vdso(memory io.ReaderAt) (base int64, image []byte) {
	m.t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", m.cmd.Process.Pid))
	m.must(err)
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			var end int64
			_, err := fmt.Sscanf(line, "%x-%x", &base, &end)
			m.must(err)
			image = make([]byte, end-base)
			_, err = memory.ReadAt(image, base)
			m.must(err)
			return base, image
		}
	}
	m.t.Fatal("no vDSO")
	return 0, nil
}

// jumps are possible changes of a wall clock, for example because a battery is empty, a time server is wrong, or the clock
// is corrected.
var jumps = map[string]time.Duration{
	"to next year": 366 * 24 * time.Hour,
	"to 1970":      -time.Until(time.Unix(86400, 0)).Abs(),
}

// TestWallClockJumps changes the wall clock while the daemon runs, and changes it back when the daemon starts again.
// Holders, the device list and pending erasures must not be affected. The test takes half a minute, because the daemon
// needs that time to be sure that a pod has ended.
func TestWallClockJumps(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	for name, by := range jumps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newKillableDaemon(t, wholeText)
			first := m.startWorkingPod("p1")
			before := m.lastAudited().Time
			m.jump(by)
			m.goesOnWith("p1", first)
			m.waitAudit(before.Add(by))
			m.changeHardware()
			m.since(first[0], before) // the time of the last change must not move
			second := m.startWorkingPod("p2")
			m.kubeletStop()
			m.kubeletStart()
			m.waitShown(diskResource, second[0], "Healthy")
			m.goesOnWith("p2", second)
			m.kill()
			m.boot() // the programs use the clock of the machine
			m.goesOnWith("p1", first)
			m.startWorkingPod("p3")
			m.changeHardware()
			m.jump(by)
			for _, p := range m.podList() {
				m.release(p)
			}
			m.await(m.compareFinal)
			m.waitAudit(before.Add(by))
		})
	}
}

// since checks that the daemon reports a certain time for the last change of a device.
func (m *killableDaemon) since(id string, moment time.Time) {
	m.t.Helper()
	var d struct{ Since time.Time }
	m.must(api.Client{Socket: filepath.Join(m.dir, "run", "control.sock")}.Get(m.t.Context(), "/v1/devices/"+id, &d))
	if d.Since.Sub(moment).Abs() > time.Hour {
		m.t.Errorf("%s is what it is since %v, not since %v", id, d.Since, moment)
	}
}

// entry has the relevant part of an audit line.
type entry struct{ Time time.Time }

// lastAudited waits for an audit line and returns the last one.
func (m *killableDaemon) lastAudited() (e entry) {
	m.t.Helper()
	m.must(eventually(func() error {
		text, err := os.ReadFile(filepath.Join(m.dir, "state", "audit.jsonl"))
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return errors.Join(err, json.Unmarshal([]byte(lines[len(lines)-1]), &e))
	}))
	return e
}

// waitAudit waits until the last audit line has about the given time.
func (m *killableDaemon) waitAudit(about time.Time) {
	m.t.Helper()
	m.must(eventually(func() error {
		if e := m.lastAudited(); e.Time.Sub(about).Abs() > 24*time.Hour {
			return fmt.Errorf("the last line is of %v, not of %v", e.Time, about)
		}
		return nil
	}))
}
