// SPDX-License-Identifier: Apache-2.0

// Command metalplug-holders tells metalplugd which processes hold device nodes. It answers one request over standard
// input, a seqpacket socket, and ends. It opens no device and needs CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and
// CAP_CHECKPOINT_RESTORE.
package main

import (
	"fmt"
	"os"

	"github.com/metalplug/metalplug/cgroup"
)

func main() {
	if err := cgroup.Serve("/proc"); err != nil {
		fmt.Fprintln(os.Stderr, "metalplug-holders:", err)
		os.Exit(1)
	}
}
