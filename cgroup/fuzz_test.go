// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzMapping: no line of /proc/PID/maps, in which the process names the files, leads out of map_files.
func FuzzMapping(f *testing.F) {
	f.Add([]byte("7f0000000000-7f0000001000 r--p 00000000 00:06 1234 /dev/nvidia0"))
	f.Add([]byte("00400000-00401000 r-xp 00000000 fe:01 5 /bin/x (deleted)"))
	f.Add([]byte("7ffd-7ffe rw-p 00000000 00:00 0 [stack]"))
	f.Add([]byte("  "))
	f.Fuzz(func(t *testing.T, line []byte) {
		addresses, file := cutMapping(line)
		if !bytes.HasPrefix(line, addresses) || !bytes.HasSuffix(line, file) {
			t.Errorf("%q: addresses %q, file %q", line, addresses, file)
		}
		if name := linkName(addresses); strings.Count(name, "/") > bytes.Count(addresses, []byte("/")) || name == "" {
			t.Errorf("the link of %q is %q", addresses, name)
		}
	})
}
