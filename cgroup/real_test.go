// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/integration/loopback"
	"github.com/metalplug/metalplug/integration/need"
)

// needed are the capabilities of the unit of metalplug-holders.
const needed = 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_CHECKPOINT_RESTORE

// needsRoot skips a test that needs root.
func needsRoot(t testing.TB) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		t.Fatal(err)
	}
	has := uint64(caps[1].Effective)<<32 | uint64(caps[0].Effective)
	if os.Geteuid() != 0 || has&needed != needed {
		need.Lacks(t, "root", "only root with all capabilities may look at others; these are %#x", has)
	}
}

// processes returns a replacement for /proc that contains only the given real processes.
func processes(t *testing.T, pids ...int) string {
	t.Helper()
	proc := newTree(t)
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		names := []string{strconv.Itoa(pid)}
		for _, task := range tasks {
			names = append(names, task.Name())
		}
		for _, name := range names {
			if _, err := os.Lstat(filepath.Join(proc.dir, name)); err != nil {
				proc.link(name, "/proc/"+name)
			}
		}
	}
	return proc.dir
}

// leaders returns the holders without the threads that a directory of [processes] also lists.
func leaders(holders []cgroup.Holder, pids ...int) []cgroup.Holder {
	return slices.DeleteFunc(slices.Clone(holders), func(h cgroup.Holder) bool { return !slices.Contains(pids, h.PID) })
}

func TestHoldersOfRealProcesses(t *testing.T) {
	needsRoot(t)
	comm := commOf(t)
	for _, c := range []struct {
		role string
		args []string
		want []cgroup.Number
	}{
		{"idle", nil, nil},
		{"open", []string{"/dev/full"}, []cgroup.Number{full}},
		{"map", []string{"/dev/zero"}, []cgroup.Number{zero}},
		{"nobody", []string{"/dev/full"}, []cgroup.Number{full}},
		{"path", []string{"/dev/full"}, nil},
		{"ioctl", []string{"/dev/full"}, []cgroup.Number{full}},
		{"thread", []string{"/dev/full"}, []cgroup.Number{full}},
		{"widow", []string{"/dev/full", "/dev/zero"}, []cgroup.Number{zero, full}},
	} {
		t.Run(c.role, func(t *testing.T) {
			pid, _ := child(t, c.role, c.args...)
			if c.role == "widow" {
				awaitState(t, pid, "Z")
			}
			var want []cgroup.Holder
			for _, n := range c.want {
				want = append(want, cgroup.Holder{PID: pid, Comm: comm, Number: n})
			}
			got, err := cgroup.Holders(processes(t, pid), []cgroup.Number{full, zero}, 0)
			if err != nil || !slices.Equal(leaders(got.Holders, pid), want) {
				t.Errorf("Holders = %+v, %v\nwant %+v", got, err, want)
			}
		})
	}
}

// commOf returns the kernel's name of the test binary.
func commOf(t *testing.T) string {
	t.Helper()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(comm), "\n")
}

// awaitState waits until the first thread of a process is in a state.
func awaitState(t *testing.T, pid int, state string) {
	t.Helper()
	for ; ; runtime.Gosched() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), ") "+state+" ") {
			return
		}
	}
}

// TestHoldersCapabilities shows the purpose of each capability in the unit of metalplug-holders.
func TestHoldersCapabilities(t *testing.T) {
	needsRoot(t)
	opener, _ := child(t, "nobody", "/dev/full")
	mapper, _ := child(t, "map", "/dev/zero")
	for _, c := range []struct {
		name   string
		caps   uint64
		unread bool
	}{
		{"nothing", needed, false},
		{"CAP_SYS_PTRACE", needed &^ (1 << unix.CAP_SYS_PTRACE), true},
		{"CAP_DAC_READ_SEARCH", needed &^ (1 << unix.CAP_DAC_READ_SEARCH), true},
		{"CAP_CHECKPOINT_RESTORE", needed &^ (1 << unix.CAP_CHECKPOINT_RESTORE), true},
	} {
		proc := processes(t, opener, mapper)
		_, said := child(t, "look", proc, fmt.Sprint(c.caps))
		t.Logf("without %s: %s", c.name, said)
		complete := strings.HasSuffix(said[0], "<nil>") &&
			strings.Contains(said[0], fmt.Sprintf(`"pid":%d,`, opener)) && strings.Contains(said[0], fmt.Sprintf(`"pid":%d,`, mapper))
		incomplete := strings.Contains(said[0], cgroup.ErrIncomplete.Error())
		if complete == c.unread || incomplete != c.unread {
			t.Errorf("without %s: %s", c.name, said)
		}
	}
}

// TestHoldersOfABlockDevice opens and maps a loop device. The loop device itself has its file open in the kernel, which
// is not visible here.
func TestHoldersOfABlockDevice(t *testing.T) {
	needsRoot(t)
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	node := loopback.New(t, file)
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		t.Fatal(err)
	}
	number := cgroup.Number{Block: true, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
	other := cgroup.Number{Block: true, Major: number.Major, Minor: number.Minor + 1}
	opener, _ := child(t, "open", node)
	mapper, _ := child(t, "map", node)
	comm := commOf(t)
	got, err := cgroup.Holders(processes(t, opener, mapper), []cgroup.Number{other, number, {Major: number.Major, Minor: number.Minor}}, 0)
	want := []cgroup.Holder{{PID: opener, Comm: comm, Number: number}, {PID: mapper, Comm: comm, Number: number}}
	slices.SortFunc(want, func(a, b cgroup.Holder) int { return a.PID - b.PID })
	if err != nil || !slices.Equal(leaders(got.Holders, opener, mapper), want) {
		t.Errorf("Holders = %+v, %v\nwant %+v", got, err, want)
	}
}

// TestClient sends a request to a separate process and receives the answer.
func TestClient(t *testing.T) {
	needsRoot(t)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(own), "metalplug-holders") // Direct searches this directory first
	if err := os.Symlink(own, program); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(program) })
	client := cgroup.Client{exchange.Peer{Program: "metalplug-holders", Socket: exchange.Direct}}

	pid, _ := child(t, "open", "/dev/full")
	got, err := client.Holders(t.Context(), func() []cgroup.Number { return []cgroup.Number{full} })
	want := []cgroup.Holder{{PID: pid, Comm: commOf(t), Number: full}}
	if !slices.Equal(leaders(got.Holders, pid), want) || errors.Is(err, cgroup.ErrIncomplete) != (got.Err() != nil) {
		t.Errorf("Holders = %+v, %v\nwant %+v among them", got, err, want)
	}
	if got, err := client.Holders(t.Context(), func() []cgroup.Number { return make([]cgroup.Number, cgroup.MaxNumbers+1) }); err == nil || got.Holders != nil {
		t.Errorf("Holders of too many numbers = %+v, %v", got, err)
	}
}
