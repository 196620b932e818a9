// SPDX-License-Identifier: Apache-2.0

package fsutil_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// TestReplaceFile checks that a link in place of the new file is not followed, and that a failure keeps the old file.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	name, elsewhere := filepath.Join(dir, "file"), filepath.Join(dir, "elsewhere")
	if err := errors.Join(os.WriteFile(elsewhere, []byte("precious"), 0o600), os.Symlink(elsewhere, name+".new")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fsutil.ReplaceFile(name, 0o600, []byte("a")), fsutil.ReplaceFile(name, 0o600, []byte("b"))); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(name+".new/full", 0o700); err != nil {
		t.Fatal(err)
	}
	// The error names the failed removal. On a read-only file system, "file exists" would hide the cause.
	if err := fsutil.ReplaceFile(name, 0o600, []byte("c")); !errors.Is(err, unix.ENOTEMPTY) {
		t.Error(err)
	}
	for file, want := range map[string]string{name: "b", elsewhere: "precious"} {
		if text, err := os.ReadFile(file); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v, want %q", file, text, err, want)
		}
	}
	if info, err := os.Lstat(name); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestReadRegular checks that everything except a small regular file is rejected, and that no read waits for the writer
// of a pipe.
func TestReadRegular(t *testing.T) {
	for want, put := range map[string]func(name string) error{
		"":                                func(name string) error { return os.WriteFile(name, []byte("1234"), 0o600) },
		"the file is larger than 4 bytes": func(name string) error { return os.WriteFile(name, []byte("12345"), 0o600) },
		"the file is a directory":         func(name string) error { return os.Mkdir(name, 0o700) },
		"the file is a symbolic link":     func(name string) error { return os.Symlink("/dev/null", name) },
		"the file is not a regular file":  func(name string) error { return unix.Mkfifo(name, 0o600) },
		"file is not a regular file":      func(name string) error { return unix.Mknod(name, unix.S_IFSOCK|0o600, 0) },
		"no such file or directory":       func(string) error { return nil },
		"file/below: not a directory":     func(name string) error { return os.WriteFile(name, nil, 0o600) },
	} {
		name := filepath.Join(t.TempDir(), "file")
		if err := put(name); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(want, "below") {
			name += "/below"
		}
		text, err := fsutil.ReadRegular(name, 4)
		if want == "" {
			if err != nil || string(text) != "1234" {
				t.Errorf("%q, %v", text, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestMain checks that no test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
