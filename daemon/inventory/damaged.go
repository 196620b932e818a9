// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// stateSize bounds what is read of a file in paths.state: a device is less than 4 KiB of it, and no machine has 16,384.
const stateSize = 64 << 20

// errDirectory: it cannot be given a second name, and nothing can take its place.
var errDirectory = errors.New("it is a directory: move it away")

// take reads a file in paths.state. One that is damaged or cannot be read is kept beside, and stays until another is written in
// its place: until then the next start has to know as well that something is lost.
func take(file string, decode func(text []byte) error) error {
	text, err := read(file)
	switch {
	case err == nil:
		if err = decode(text); err == nil {
			return nil
		}
	case errors.Is(err, fs.ErrNotExist):
		return err
	case errors.Is(err, unix.ENOTDIR): // there is nothing to keep
		return fmt.Errorf("%w: set paths.state to a directory", err)
	}
	var pathError *fs.PathError
	if !errors.As(err, &pathError) {
		err = fmt.Errorf("read %s: %w", file, err)
	}
	if errors.Is(err, errDirectory) {
		return err
	}
	aside, besideErr := keepBeside(file, ".damaged")
	if err = fmt.Errorf("%w; it is kept as %s", err, aside); besideErr != nil {
		err = fmt.Errorf("%w, or would be: %w", err, besideErr)
	}
	return err
}

// read returns the text of a regular file.
func read(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errDirectory
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, stateSize+1))
	if err == nil && len(text) > stateSize {
		err = fmt.Errorf("it is larger than %d bytes", stateSize)
	}
	return text, err
}

// keepBeside gives a file that is to be replaced a second name, under which it stays, beside what was kept so on an earlier day.
// The name ends with what became of it, and a number if need be. Where it has one already, that is returned.
func keepBeside(file, fate string) (aside string, err error) {
	aside = file + fate
	for n := 2; ; n++ {
		err = os.Link(file, aside)
		switch {
		case !errors.Is(err, fs.ErrExist):
			return aside, err
		case sameFile(file, aside):
			return aside, nil
		}
		aside = fmt.Sprintf("%s%s.%d", file, fate, n)
	}
}

func sameFile(a, b string) bool {
	one, errOne := os.Lstat(a)
	other, errOther := os.Lstat(b)
	return errOne == nil && errOther == nil && os.SameFile(one, other)
}
