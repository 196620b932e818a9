// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// fill reads a whole disk and writes to all of it. It returns "blank", or the first bytes that were not zero. The written
// data contains the PID.
func fill(disk *os.File) (found string, err error) {
	content, err := io.ReadAll(disk)
	if err != nil {
		return "", err
	}
	found = "blank"
	if i := bytes.IndexFunc(content, func(r rune) bool { return r != 0 }); i >= 0 {
		found = fmt.Sprintf("%q at %d", content[i:min(i+40, len(content))], i)
	}
	mine := fmt.Appendf(nil, "data of process %d; ", os.Getpid())
	if _, err := disk.WriteAt(bytes.Repeat(mine, len(content)/len(mine)), 0); err != nil {
		return "", err
	}
	return found, disk.Sync()
}
