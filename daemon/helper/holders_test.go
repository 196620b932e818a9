// SPDX-License-Identifier: Apache-2.0

package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/exchangetest"
)

// TestReaching checks that a process with the controller, the generic node or a partition of a disk open counts as a
// holder of the disk.
func TestReaching(t *testing.T) {
	root := t.TempDir()
	controller := filepath.Join(root, "devices/pci0000:00/0000:00:01.0/nvme/nvme4")
	for name, dev := range map[string][3]string{
		"": {"nvme", "char", "241:4"}, "nvme3n2": {"block", "block", "259:1"}, "ng4n2": {"nvme-generic", "char", "242:2"},
		"nvme3n2/nvme3n2p1": {"block", "block", "259:2"}, "nvme3n1": {"block", "block", "259:4"},
	} {
		dir := filepath.Join(controller, name)
		err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "dev"), []byte(dev[2]+"\n"), 0o600),
			os.Symlink("/class/"+dev[0], filepath.Join(dir, "subsystem")),
			os.MkdirAll(filepath.Join(root, "dev", dev[1]), 0o755), os.Symlink(dir, filepath.Join(root, "dev", dev[1], dev[2])))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(controller, "nvme3n2/nvme3n2p1/partition"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := &client{sysfs: sysfs.Tree{Sys: root}}
	for _, c := range []struct {
		of   cgroup.Number
		want string
	}{
		{cgroup.Number{Block: true, Major: 259, Minor: 1}, "[b 259:1 c 241:4 c 242:2 b 259:2]"},
		{cgroup.Number{Major: 242, Minor: 2}, "[c 242:2 c 241:4 b 259:1 b 259:2]"},
		{cgroup.Number{Block: true, Major: 259, Minor: 4}, "[b 259:4 c 241:4]"},
		{cgroup.Number{Major: 1, Minor: 3}, "[c 1:3]"},
	} {
		numbers, paths, err := h.findNodes(c.of)
		slices.SortFunc(numbers[1:], func(a, b cgroup.Number) int {
			order := []string{"c 241:4", "c 242:2", "b 259:1", "b 259:2"}
			return slices.Index(order, a.String()) - slices.Index(order, b.String())
		})
		if got := fmt.Sprint(numbers); got != c.want || err != nil || len(paths) > 0 && len(paths) != len(numbers) {
			t.Errorf("%v is reached by %s at %q, %v; want %s", c.of, got, paths, err, c.want)
		}
	}
	if err := os.WriteFile(filepath.Join(controller, "dev"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if numbers, _, err := h.findNodes(cgroup.Number{Block: true, Major: 259, Minor: 1}); err == nil {
		t.Errorf("without the number of its controller a disk is reached by %v", numbers)
	}
}

// TestAskedTogether checks that simultaneous callers share one request, even if one of them is cancelled.
func TestAskedTogether(t *testing.T) {
	const devices = 24
	questions := make(chan string, devices)
	dir, err := os.MkdirTemp("", "mp") // a short name, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	exchangetest.Listen(t, socket, func(fd int) {
		request := make([]byte, exchange.MessageSize)
		if n, err := unix.Read(fd, request); err == nil && n > 0 {
			questions <- string(request[:n])
			unix.Write(fd, []byte(`{"holders":[{"pid":7,"comm":"dd","node":"c 1:3"}]}`))
		}
	})
	h := &client{holders: cgroup.Client{Peer: exchange.Peer{Socket: socket}}, next: &question{done: make(chan struct{})}}
	first := h.next
	var all sync.WaitGroup
	for minor := range uint32(devices) {
		all.Go(func() {
			a, err := h.ask(t.Context(), []cgroup.Number{{Major: 1, Minor: 3}, {Major: 2, Minor: minor}})
			if err != nil || len(a.Holders) != 1 || a.Holders[0].PID != 7 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	for joined := 0; joined < 2*devices; runtime.Gosched() {
		h.mu.Lock()
		joined = len(first.numbers)
		h.mu.Unlock()
	}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.ask(impatient, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a question that cannot wait: %v", err)
	}
	h.send(first)
	all.Wait()
	asked := ""
	for len(questions) > 0 {
		asked += <-questions
	}
	for minor := range devices {
		if !strings.Contains(asked, fmt.Sprintf("%q", fmt.Sprint("c 2:", minor))) {
			t.Errorf("no one asked about 2:%d: %s", minor, asked)
		}
	}
	for socket, most := range map[string]int{"reset": maxWorking, "holders": maxWorking + maxAsking} {
		text, err := os.ReadFile("../../systemd/metalplug-" + socket + ".socket")
		if err != nil || !strings.Contains(string(text), fmt.Sprintf("\nMaxConnections=%d\n", most)) {
			t.Errorf("metalplug-%s.socket takes other than %d connections: %v", socket, most, err)
		}
	}
}
