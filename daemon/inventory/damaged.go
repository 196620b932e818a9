// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// read returns the text of a file in paths.state.
func read(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w: set paths.state to a directory", err)
	}
	return text, err
}

// keepBeside gives a file that is to be replaced a second name, under which it stays, beside what was kept so on an earlier day.
// Where it has one already, that is returned.
func keepBeside(file string) (aside string, err error) {
	aside = file + ".damaged"
	for n := 2; ; n++ {
		err = os.Link(file, aside)
		switch {
		case !errors.Is(err, fs.ErrExist):
			return aside, err
		case sameFile(file, aside):
			return aside, nil
		}
		aside = fmt.Sprintf("%s.damaged.%d", file, n)
	}
}

func sameFile(a, b string) bool {
	one, errOne := os.Lstat(a)
	other, errOther := os.Lstat(b)
	return errOne == nil && errOther == nil && os.SameFile(one, other)
}
