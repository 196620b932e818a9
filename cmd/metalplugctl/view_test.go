// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// running is a command that runs until the test stops it.
type running struct {
	t      *testing.T
	keys   *os.File    // writes to the command's terminal, or nil
	chunks chan string // the output of the command as it arrives
	all    string      // the output after the last match
	code   chan int
	cancel context.CancelFunc
	stderr bytes.Buffer // empty if the command has a terminal
}

// start runs a command, which writes to the first file. The test reads its output from the second.
func start(t *testing.T, out *os.File, stderr io.Writer, output *os.File, args ...string) *running {
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, chunks: make(chan string, 1000), code: make(chan int, 1), cancel: cancel}
	go func() {
		defer close(r.chunks)
		buf := make([]byte, 64<<10)
		for {
			n, err := output.Read(buf)
			if err != nil { // a terminal returns EIO once no process has it open
				return
			}
			r.chunks <- string(buf[:n])
		}
	}()
	go func() {
		code := run(ctx, args, out, cmp.Or[io.Writer](stderr, &r.stderr))
		out.Close()
		r.code <- code
	}()
	t.Cleanup(func() {
		cancel()
		output.Close()
	})
	return r
}

// follow runs a command with the socket of metalplugd and a pipe.
func (n *node) follow(args ...string) *running {
	n.t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	return start(n.t, write, nil, read, append([]string{"--socket", n.socket()}, args...)...)
}

// onTerminal runs a command on a terminal with this number of columns and rows.
func onTerminal(t *testing.T, columns, rows uint16, args ...string) *running {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
	v := start(t, slave, slave, master, args...)
	v.keys = master
	return v
}

// waitText waits for texts in this order on one line of the output after the last match.
func (v *running) waitText(texts ...string) {
	v.t.Helper()
	for i, text := range texts {
		texts[i] = regexp.QuoteMeta(text)
	}
	pattern := regexp.MustCompile(strings.Join(texts, ".*"))
	for limit := time.After(patience); ; {
		if at := pattern.FindStringIndex(v.all); at != nil {
			v.all = v.all[at[1]:]
			return
		}
		select {
		case chunk, ok := <-v.chunks:
			if !ok {
				v.t.Fatalf("it ends before %s: %q, %s", pattern, v.all, &v.stderr)
			}
			v.all += chunk
		case <-limit:
			v.t.Fatalf("never %s, but %q", pattern, v.all)
		}
	}
}

// press presses a key.
func (v *running) press(key string) {
	v.t.Helper()
	if _, err := v.keys.WriteString(key); err != nil {
		v.t.Fatal(err)
	}
}

// end waits for the exit code and returns the last output.
func (v *running) end() (code int, last string) {
	for chunk := range v.chunks {
		v.all += chunk
	}
	return <-v.code, v.all
}

// TestLivePreview follows a hotplug and an invalid recording, and scrolls with keys.
func TestLivePreview(t *testing.T) {
	t.Setenv("TERM", "xterm")
	file := filepath.Join(t.TempDir(), "node.umockdev")
	save(t, file, "")
	v := onTerminal(t, 80, 24, "preview", "--config", withDisks(t), "--recording", file)
	v.waitText(openView)
	v.waitText("matches no device of this machine")
	save(t, file, bundledText(t, "gpu-server"))
	v.waitText("nvidia.com/gpu           8         8")
	v.waitText("gpu-0000:03:00.0                           -                        Not offered")
	v.waitText(green + "Healthy" + normal)
	v.waitText("q quits  1-23 of ")
	v.press("\x1b[6~")
	v.waitText("q quits  23-45 of ")
	v.press("k")
	v.waitText("q quits  22-44 of ")
	save(t, file, "nonsense")
	v.waitText("recording not reloaded")
	v.press("G?\x1b[1~")
	v.waitText("In \"kubectl describe node\"")
	v.waitText("recording not reloaded")
	v.press("q")
	if code, last := v.end(); code != exitOK || !strings.HasSuffix(last, closeView) {
		t.Errorf("exit %d, %q", code, last)
	}
}

// TestServe does what the README shows. A pod gets devices, and other commands use the control socket.
func TestServe(t *testing.T) {
	t.Setenv("TERM", "xterm")
	top, err := os.MkdirTemp("", "mp") // short, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	dir := filepath.Join(top, "try")
	v := onTerminal(t, 200, 60, "preview", "--recording", "gpu-server", "--allocate", "nvidia.com/gpu=2", "--serve", dir)
	v.waitText("METALPLUG_SOCKET=" + dir + "/control.sock; " + os.Args[0] + " list")
	v.waitText("A container that requests nvidia.com/gpu=2 gets:")
	v.waitText("METALPLUG_NVIDIA_COM_GPU=")
	given, _, _ := strings.Cut(v.all, ",")
	v.waitText("default/pod-1")
	socket := filepath.Join(dir, "control.sock")
	for _, test := range []struct{ args, want string }{
		{"status", "nvidia.com/gpu           8 of 8 healthy, 2 held; kubelet connected\n"},
		{"why " + given, "=>  offered as nvidia.com/gpu, Healthy, held by default/pod-1 (main)\n"},
		{"cordon ibp25s0", "infiniband-b8cef60300a12b3c: Cordoned: by the operator\n"},
	} {
		code, stdout, stderr := ctl(t, append([]string{"--socket", socket}, strings.Fields(test.args)...)...)
		if code != exitOK || stderr != "" || !strings.Contains(stdout, test.want) {
			t.Errorf("%s: exit %d, %s\n%s", test.args, code, stderr, stdout)
		}
	}
	v.waitText("metalplug.io/infiniband  8         7")
	if code, _, stderr := ctl(t, "preview", "--recording", "gpu-server", "--serve", dir); code != exitProblem || !strings.Contains(stderr, ": file exists; name a new directory") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	v.press("q")
	if code, _ := v.end(); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if left, err := os.ReadDir(top); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestWatchOnATerminal uses a terminal of 20 columns, into which each line must fit. metalplugd restarts in between.
func TestWatchOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	n := newNode(t, bundledText(t, "gpu-server"), "")
	v := onTerminal(t, 20, 60, "--socket", n.socket(), "watch")
	v.waitText("    7 of 7 healthy;" + endLine)
	if _, _, stderr := n.ctl("cordon", lastDisk, "--reason", "ticket 4711"); stderr != "" {
		t.Fatal(stderr)
	}
	v.waitText("    6 of 7 healthy," + endLine)
	v.waitText("    Cordoned")
	v.waitText("    cordoned: ticket" + endLine)
	n.stop()
	v.waitText("metalplugd does not")
	n.start()
	v.waitText(endScreen + reverse + "q quits") // no output may come in between
	v.press("q")
	if code, last := v.end(); code != exitOK || !strings.HasSuffix(last, closeView) {
		t.Errorf("exit %d, %q", code, last)
	}
}

// TestDumbTerminal checks that a terminal without capabilities gets the state only once, and as plain text.
func TestDumbTerminal(t *testing.T) {
	for _, term := range []string{"", "dumb"} {
		t.Setenv("TERM", term)
		code, text := onTerminal(t, 80, 24, "preview", "--recording", "gpu-server").end()
		if code != exitOK || strings.Contains(text, "\x1b") || !strings.Contains(text, "nvidia.com/gpu           8         8") {
			t.Errorf("exit %d, %q", code, text)
		}
	}
}
