//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"io"
	"net"
	"os"
)

// stays is the environment variable that keeps a machine running after its test has failed.
const stays = "METALPLUG_VM_STAY"

// listen lets other processes run commands in the machine. Each connection to the socket "shell" sends a script and receives
// its output. The script disturbs the test only by the changes that it makes in the machine.
func (m *Machine) listen() error {
	l, err := net.Listen("unix", m.path("shell"))
	if err != nil {
		return fmt.Errorf("listen for scripts: %w", err)
	}
	m.shell = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the socket was closed
			}
			go m.serve(conn)
		}
	}()
	return nil
}

func (m *Machine) serve(conn net.Conn) {
	defer conn.Close()
	script, err := io.ReadAll(conn)
	if err != nil {
		return
	}
	r, err := m.guest.run(nil, commandTimeout, "sh", "-c", string(script))
	if err != nil {
		fmt.Fprintln(conn, err)
		return
	}
	fmt.Fprintf(conn, "%s%s", r.Stdout, r.Stderr)
	if r.Code != 0 {
		fmt.Fprintf(conn, "exit code %d\n", r.Code)
	}
}

// stay keeps a machine, if the environment requests it, until a process connects to the socket "go" in its folder or
// QEMU ends.
func (m *Machine) stay() {
	if os.Getenv(stays) == "" {
		return
	}
	l, err := net.Listen("unix", m.path("go"))
	if err != nil {
		m.t.Logf("keep the machine: %v", err)
		return
	}
	defer l.Close()
	fmt.Printf("=== %s stays: connect to %s for a script, and to %s to have it end\n", m.t.Name(), m.path("shell"), m.path("go"))
	gone := make(chan struct{})
	go func() {
		if conn, err := l.Accept(); err == nil {
			_ = conn.Close()
		}
		close(gone)
	}()
	select {
	case <-gone:
	case err := <-m.exit:
		m.exit <- err
	}
}
