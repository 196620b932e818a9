// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// program is the process of a container. It sees everything that the node has.
type program struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and its output is in the log
}

// start starts a program and appends its output to an existing log. The kernel kills the program when the runtime ends.
func start(command []string, environment map[string]string, log string) (*program, error) {
	p := &program{cmd: exec.Command(command[0], command[1:]...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for k, v := range environment {
		p.cmd.Env = append(p.cmd.Env, k+"="+v)
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = p.cmd.Stdout
	file, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		file.Close()
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	go func() {
		defer close(p.done)
		defer file.Close()
		copyLines(file, output)
		_ = p.cmd.Wait() // ProcessState has the exit code
	}()
	return p, nil
}

// copyLines copies the output of a program to its log. It writes an error to the log of the runtime.
func copyLines(log io.Writer, output io.Reader) {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if _, err := log.Write(logLine(lines.Bytes())); err != nil {
			fmt.Fprintln(os.Stderr, "cri:", err)
		}
	}
}

// logLine returns a line in the format of a CRI log (cri-api, ContainerConfig.log_path).
func logLine(text []byte) []byte {
	return fmt.Appendf(nil, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), text)
}

// stop sends SIGTERM to the program, and kills it after the timeout.
func (p *program) stop(timeout time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.done:
	case <-time.After(timeout):
		p.kill()
	}
}

// kill kills the program and waits until it has ended. p may be nil.
func (p *program) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// code returns the exit code of a program that has ended, as a shell shows it.
func (p *program) code() int {
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}
