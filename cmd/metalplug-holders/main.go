// SPDX-License-Identifier: Apache-2.0

// Command metalplug-holders reports to metalplugd which processes have device nodes open. The command's standard input is a
// seqpacket socket. The command reads one request from this socket, sends the answer, and exits. The command does not open
// devices. The command needs CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE.
package main

import (
	"os"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/exchange"
)

const about = `reports to metalplugd which processes have device nodes open, and ends.

systemd starts it for each request; with [reset] holders = "direct" metalplugd does. It has no options. To
see who holds a device, use 'metalplugctl why'. See metalplugd(8).
`

func main() {
	os.Exit(exchange.Main(cgroup.Program, about, os.Args[1:], func() error { return cgroup.Serve("/proc") }))
}
