// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

var update = flag.Bool("update", false, "replace the examples of the man page")

// books is a kubelet that reports one disk as held by a pod.
type books struct {
	podresources.UnimplementedPodResourcesListerServer
	disk string
}

func (b books) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	devices := []*podresources.ContainerDevices{{ResourceName: "metalplug.io/nvme", DeviceIds: []string{b.disk}}}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Namespace: "shop", Name: "db-0", Containers: []*podresources.ContainerResources{{Name: "postgres", Devices: devices}},
	}}}, nil
}

// example compares the output of a command line with the man page. It normalises the parts that differ between runs. It
// replaces the directory of the node with the directory in docs/operating.md, and all times with one time. It also shortens
// the paths in /sys and the IDs that are too long for a page with 80 columns.
func (n *node) example(t *testing.T, name, commandLine, output string) {
	t.Helper()
	output = strings.ReplaceAll(output, n.dir, "/tmp/try")
	output = regexp.MustCompile(`/sys/devices/pci\S+/0000:16:00\.0/`).ReplaceAllString(output, "/sys/devices/.../")
	output = regexp.MustCompile(`(Z  \w+ +GPU-\w+-)\S+`).ReplaceAllString(output, "$1...")
	output = regexp.MustCompile(`up \d+s`).ReplaceAllString(output, "up 7s")
	output = regexp.MustCompile(`\d{4}-\d\d-\d\d\s+\d\d:\d\d:\d\dZ`).ReplaceAllString(output, "2026-11-25 10:15:30Z")
	output = regexp.MustCompile(`\(by [^,)]*`).ReplaceAllString(output, "(by root")
	got := "$ " + commandLine + "\n" + output
	file := filepath.Join("../../packaging/man/examples", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	// Line breaks depend on the length of the directory's name.
	if err != nil || !slices.Equal(strings.Fields(got), strings.Fields(string(want))) {
		t.Errorf("the man page shows something else than is printed (-update replaces %s): %v\n%s\nwant\n%s", file, err, got, want)
	}
}

// pageColumns is the width of a display in a man page with 80 columns.
const pageColumns = "75"

// runCommand runs a command and returns its output, as wide as a display in a man page.
func (n *node) runCommand(t *testing.T, code int, args ...string) string {
	t.Helper()
	t.Setenv("COLUMNS", pageColumns)
	text, got, err := n.ctl(t.Context(), args...)
	if err != nil || got != code {
		t.Fatalf("%q: exit %d, want %d, %v: %s", args, got, code, err, text)
	}
	return text
}

// waitOutput runs a command waitOutput its output contains a word.
func (n *node) waitOutput(t *testing.T, word string, args ...string) {
	t.Helper()
	for limit := time.After(patience); ; {
		text, _, err := n.ctl(t.Context(), args...)
		if err == nil && strings.Contains(text, word) {
			return
		}
		select {
		case <-limit:
			t.Fatalf("%q never prints %q, but %s: %v", args, word, text, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// startNode returns a node with a ready daemon and the given resources in its configuration.
func startNode(t *testing.T, resources string) *node {
	t.Helper()
	n, err := newNode(programs, gpuServer(), resources)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.remove(); err != nil {
			t.Error(err)
		}
	})
	if err := n.boot(); err != nil {
		t.Fatal(err)
	}
	return n
}

// pods runs a kubelet on the node with a pod that holds the first disk.
func (n *node) pods(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", n.path("pods.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, books{disk: strings.Replace(lastDisk, "1270", "1210", 1)})
	go server.Serve(l) // returns when it is stopped
	t.Cleanup(server.Stop)
	k, err := kubelet.Start(n.path("plugins"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	limit := time.After(patience)
	for _, name := range []string{"nvidia.com/gpu", "metalplug.io/infiniband", "metalplug.io/nvme"} {
		for changed := k.Changed(); !k.Resource(name).Connected; changed = k.Changed() {
			select {
			case <-changed:
			case <-limit:
				t.Fatalf("%s never connects", name)
			}
		}
	}
	if _, err := k.Allocate(t.Context(), "metalplug.io/nvme", 1); err != nil {
		t.Fatal(err)
	}
	n.waitOutput(t, "shop/db-0", "list")
}

// TestManPageShowsRealOutput checks that the page of metalplugctl contains the output of the programs for the bundled
// recording.
func TestManPageShowsRealOutput(t *testing.T) {
	lookAtSources(t)
	n := startNode(t, "")
	sick := n.runCommand(t, exitProblem, "doctor", "--config", "try.toml")
	remedy := strings.Index(sick, "->")
	if remedy < 0 {
		t.Fatalf("the doctor finds nothing: %s", sick)
	}
	end := remedy + strings.Index(sick[remedy:], "\n") + 1
	n.example(t, "doctor", "metalplugctl doctor", sick[:end]+"...\n")

	n.pods(t)
	n.example(t, "list", "metalplugctl list", n.runCommand(t, exitOK, "list"))
	n.example(t, "status", "metalplugctl status", n.runCommand(t, exitOK, "status"))
	n.example(t, "why", "metalplugctl why /dev/nvme0n1", n.runCommand(t, exitProblem, "why", "/dev/nvme0n1"))

	const bad = "[[resource]]\nname  = \"example.org/scratch\"\nclas  = \"nvme\"\nmatch = { ID_MODEL = \"Samsung*\" }\nshares = 0\n"
	if err := os.WriteFile(n.path("new.toml"), []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	n.example(t, "check", "metalplugctl check new.toml", n.runCommand(t, exitProblem, "check", "new.toml"))
	n.example(t, "events", "metalplugctl events", n.recordEvents(t))

	configured := startNode(t, gpus+"exclude = { PCI_SLOT_NAME = \"0000:18:*\" }\n")
	configured.example(t, "excluded", "metalplugctl why /dev/nvidia2", configured.runCommand(t, exitProblem, "why", "/dev/nvidia2"))
}

// recordEvents returns the output of the command events while an adapter is cordoned and a GPU is lost.
func (n *node) recordEvents(t *testing.T) string {
	t.Helper()
	t.Setenv("COLUMNS", pageColumns)
	c := n.command(t.Context(), "events")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(patience, func() { _ = c.Process.Kill() }) // without a limit the command could wait forever
	defer watchdog.Stop()
	text, lines := "", bufio.NewReader(out)
	next := func(word string) {
		t.Helper()
		for found := false; !found; {
			line, err := lines.ReadString('\n')
			if text += line; err != nil {
				t.Fatalf("%q, %v, want %q", text, err, word)
			}
			found = strings.Contains(line, word)
		}
	}
	next("listening")
	n.runCommand(t, exitOK, "cordon", "infiniband-b8cef60300a12b3c", "--reason", "slow")
	next("cordoned")
	if err := n.plug(removeDevice(t, gpuServer(), "P: /devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0\n")); err != nil {
		t.Fatal(err)
	}
	next("gone")
	if err := n.plug(gpuServer()); err != nil {
		t.Fatal(err)
	}
	next("back")
	next("healthy")
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if text += string(rest); err != nil || len(rest) > 0 && rest[0] != ' ' { // the line may continue
		t.Errorf("in the end: %q, %v", rest, err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	return text
}

// removeDevice removes the device whose block begins with the given text from a recording.
func removeDevice(t *testing.T, text, begin string) string {
	t.Helper()
	at := strings.Index(text, begin)
	if at < 0 {
		t.Fatalf("the recording has no %q", begin)
	}
	return text[:at] + text[at+strings.Index(text[at:], "\n\n")+2:]
}
