// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
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

// A kubelet that knew an earlier endpoint gets time to process the end of that endpoint. A newer kubelet needs no such time.
func TestPauseAfterAnotherEndpoint(t *testing.T) {
	now := time.Now()
	kubelet := identity{inode: 1}
	kubelet.changed.Sec = now.Unix()
	for _, test := range []struct {
		before time.Time
		want   bool
	}{{time.Time{}, false}, {now.Add(-time.Minute), false}, {now.Add(time.Minute), true}} {
		r := registration{begun: now}
		r.updateKubelet(kubelet, test.before)
		if r.known != test.want || r.notBefore.Equal(now.Add(restartPause)) != test.want {
			t.Errorf("%v: known %v, not before %v", test.before, r.known, r.notBefore)
		}
	}
}
