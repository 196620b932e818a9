// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

func TestNotMasked(t *testing.T) {
	s := make(secrets)
	for _, value := range []string{"", "1234", "0x0000000000000000", "00000000-0000-0000-0000-000000000000", "eui.0000", "unknown serial"} {
		s.add(value)
	}
	s.attr("model", "Samsung SSD 990")
	s.property("ID_MODEL", "Samsung SSD 990")
	if len(s) > 0 {
		t.Errorf("%v", s)
	}
}

func TestMaskOfSecretsInSecrets(t *testing.T) {
	s := make(secrets)
	s.attr("ports/1/serial", "ABCDE\n")
	s.property("ID_WWN", "eui.ABCDEFGHIJ")
	masked := s.mask("ABCDEFGHIJ ABCDE 4142434445 x")
	if strings.Contains(masked, "ABCDE") || strings.Contains(masked, "4142434445") || !strings.HasSuffix(masked, " x") {
		t.Errorf("%q", masked)
	}
	// The longer identity is replaced as a whole. Otherwise it would be replaced in two parts, which would match the
	// other texts only by chance.
	if fields := strings.Fields(masked); strings.HasPrefix(fields[0], fields[1]) {
		t.Errorf("%q", masked)
	}
}

// Attributes that are too deep, other devices, and links to nothing in sysfs are left out.
func TestSkippedAttributes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("state", "live\n", 0o444)
	write("vpd", "x", 0o444)
	write("resource0", "x", 0o444)
	write("uevent", "x", 0o444)
	write("config", strings.Repeat("\xff", 256), 0o444)
	write("long", strings.Repeat("x", 2*sysfs.AttrSize), 0o444)
	write("ports/1/state", "4: ACTIVE\n", 0o444)
	write("child/uevent", "", 0o444)
	write("child/state", "x", 0o444)
	write("a/b/c/d/e/f", "x", 0o444)
	for name, target := range map[string]string{"driver": "../../bus/pci/drivers/nvme", "absolute": "/etc", "subsystem": "../x"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	(&Recorder{secrets: make(secrets)}).writeAttrs(&text, dir, "", attrDepth)
	want := "H: config=" + strings.Repeat("ff", configSize) + "\nL: driver=../../bus/pci/drivers/nvme\nA: long=" +
		strings.Repeat("x", sysfs.AttrSize) + "\nA: ports/1/state=4: ACTIVE\\n\nA: state=live\\n\n"
	if text.String() != want {
		t.Errorf("%s\nwant\n%s", text.String(), want)
	}
}
