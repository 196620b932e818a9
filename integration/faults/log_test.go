// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// journalEnv contains the socket that replaces journald's for a daemon that runs as a process.
const journalEnv = "METALPLUG_FAULTS_JOURNAL"

// reachJournal replaces journald's socket with the socket of the test, in a mount namespace of this process.
func reachJournal() error {
	socket := os.Getenv(journalEnv)
	if socket == "" {
		return nil
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return err
	}
	return errors.Join(os.MkdirAll("/run/systemd/journal", 0o755), os.Symlink(socket, "/run/systemd/journal/socket"))
}

// unread is the log of a daemon while its reader is stopped. read resumes the reader.
type unread struct {
	connect func(*exec.Cmd)
	read    func() string // reads the next text
}

// fullPipe returns a full pipe whose reader does not read, as when a supervisor is stopped.
func fullPipe(t *testing.T) unread {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	for err == nil {
		_ = w.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, err = w.Write([]byte("before\n"))
	}
	buf := make([]byte, 1<<16)
	return unread{
		connect: func(c *exec.Cmd) { c.Stderr = w },
		read: func() string {
			n, err := r.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			return string(buf[:n])
		},
	}
}

// stoppedJournal simulates a journald that reads nothing, and whose queue has lines of other programs.
func stoppedJournal(t *testing.T) unread {
	t.Helper()
	needRoot(t)
	dir := shortDir(t)
	path := filepath.Join(dir, "journal")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	other, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for err == nil {
		_ = other.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, err = other.Write([]byte("MESSAGE=before\n"))
	}
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stderr.Close() })
	var st unix.Stat_t
	if err := unix.Fstat(int(stderr.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<18)
	return unread{
		connect: func(c *exec.Cmd) {
			c.Stderr = stderr
			c.Env = append(c.Env, fmt.Sprintf("JOURNAL_STREAM=%d:%d", st.Dev, st.Ino), journalEnv+"="+path)
			c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		},
		read: func() string {
			n, err := l.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			return string(buf[:n])
		},
	}
}

// TestUnreadLog stops the reader of the log before the daemon starts. Hotplug, allocation, container start and a
// kubelet restart must still work. When the reader continues, the log contains the first events.
func TestUnreadLog(t *testing.T) {
	noLeaks(t)
	for name, make := range map[string]func(*testing.T) unread{"pipe": fullPipe, "journal": stoppedJournal} {
		t.Run(name, func(t *testing.T) {
			m := newKillableDaemon(t, wholeText)
			m.kill()
			log := make(t)
			m.log = log.connect
			m.boot()
			for range 50 {
				m.changeHardware()
			}
			ids := m.admitPod("p1", diskResource)
			m.must(m.kubelet.start(m.t.Context(), diskResource, ids))
			m.work("p1", ids)
			m.kubeletStop()
			m.kubeletStart()
			for _, d := range m.disks {
				m.waitShown(diskResource, d.id(), "Healthy")
			}
			m.must(eventually(func() error { return m.kubelet.start(m.t.Context(), diskResource, ids) }))
			m.changeHardware()
			m.auditHas(`"event":"started"`)
			var text strings.Builder
			for _, want := range []string{"ready", "endpoint registered", "device gone", "device started"} {
				for !strings.Contains(text.String(), want) {
					io.WriteString(&text, log.read())
				}
			}
		})
	}
}

// auditHas waits until the audit contains a text.
func (m *killableDaemon) auditHas(want string) {
	m.t.Helper()
	m.must(eventually(func() error {
		text, err := os.ReadFile(filepath.Join(m.dir, "state", "audit.jsonl"))
		if err == nil && !strings.Contains(string(text), want) {
			err = errors.New("the audit has no " + want)
		}
		return err
	}))
}
