// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

//go:embed cleaner.sh
var cleanerScript string

// cleaner is a shell that removes the directory and the cgroup of a cluster when this process ends, even if a signal kills
// this process.
type cleaner struct {
	cmd  *exec.Cmd
	life *os.File // a pipe that is closed when this process ends
}

func startCleaner(cgroup, dir string) (*cleaner, error) {
	wait, life, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	c := &cleaner{cmd: exec.Command("sh", "-c", cleanerScript, "cleaner.sh", cgroup, dir), life: life}
	c.cmd.Stdin, c.cmd.Stderr = wait, os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // see spawnWith
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start sh: %w", err), life.Close())
	}
	return c, nil
}

// clean removes the directory. The programs of the cluster must have ended.
func (c *cleaner) clean() error {
	if err := errors.Join(c.life.Close(), c.cmd.Wait()); err != nil {
		return fmt.Errorf("remove the directory of the cluster: %w", err)
	}
	return nil
}

// process is a child process. The kernel kills it when this process ends for any reason.
type process struct {
	name string
	log  string // path of the log file
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// spawn starts a program. Its output is appended to NAME.log in dir.
func spawn(dir, name string, command ...string) (*process, error) {
	return spawnWith(nil, dir, name, command...)
}

// spawnWith starts a program. The files are its descriptors from 3 on.
func spawnWith(files []*os.File, dir, name string, command ...string) (*process, error) {
	file := filepath.Join(dir, name+".log")
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{name: name, log: file, cmd: exec.Command(command[0], command[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = log, log, files
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // Ctrl-C at the terminal reaches only this process, which ends the others in order
		Pdeathsig: syscall.SIGKILL,
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState has the exit code
	}()
	return p, nil
}

// kill ends the process like a crash. The process may have ended already, and p may be nil.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// ended returns an error if the process has ended. The error contains the end of the log, because the log is removed with
// the cluster.
func (p *process) ended() error {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("%s ended: %v: %s", p.name, p.cmd.ProcessState, strings.Join(lines[max(0, len(lines)-5):], "\n\t"))
}

// alive reports whether the process runs.
func (p *process) alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}
