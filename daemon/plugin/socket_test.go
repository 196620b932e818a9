// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestDropLeavesAnotherSocket(t *testing.T) {
	s := socket{path: filepath.Join(t.TempDir(), "s.sock")}
	other := socket{path: s.path}
	if _, err := s.ensure(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.path, s.path+".old"); err != nil { // the old file still exists, so the new one gets another inode number
		t.Fatal(err)
	}
	if _, err := other.ensure(); err != nil {
		t.Fatal(err)
	}
	s.drop()
	if !socketIdentity(s.path).sameFile(other.own) {
		t.Error("another's socket is gone")
	}
	other.drop()
	if _, err := os.Lstat(s.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the own socket is left behind: %v", err)
	}
}
