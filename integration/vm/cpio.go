//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"fmt"
	"strings"
)

// entry is one file, folder or link of an archive. mode includes the type.
type entry struct {
	name string
	mode uint32 // type and permissions, see st_mode in inode(7)
	body []byte // content of a file, or target of a link
}

const (
	modeDir     = 0o040755
	modeProgram = 0o100755
	modeFile    = 0o100644
	modeLink    = 0o120777
)

// cpio returns a "newc" archive. If the archive is appended to an initrd, the kernel unpacks it over the files of the
// initrd.
func cpio(entries []entry) []byte {
	var b bytes.Buffer
	pad := func() { b.WriteString(strings.Repeat("\x00", (4-b.Len()%4)%4)) }
	for i, e := range append(entries, entry{name: "TRAILER!!!"}) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
			i+1, e.mode, 0, 0, 1, 0, len(e.body), 0, 0, 0, 0, len(e.name)+1, 0, e.name)
		pad()
		b.Write(e.body)
		pad()
	}
	return b.Bytes()
}
