// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// listedGPU is a GPU of the recording gpu-server in the output of nvidia-smi -L. firstDisk is the path of its system disk.
const (
	listedGPU = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-36f675cc-81e7-4ef5-a8e2-5d940ed90475)\n"
	secondGPU = "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
	firstDisk = "devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:04.0/0000:1c:00.0/nvme/nvme0"
	otherDisk = "devices/pci0000:15/0000:15:01.0/0000:99:00.0/nvme/nvme9"
)

// TestReport checks that the script for a remote node finds and reports devices that metalplug does not know.
func TestReport(t *testing.T) {
	lookAtSources(t)
	for _, test := range []struct {
		name, nvidia, disk, want string
		differs                  bool
	}{
		{"no device is known elsewhere", "", "", "The report is in ", false},
		{"a GPU", listedGPU, "", "same     nvidia-smi GPU-36f675cc-81e7-4ef5-a8e2-5d940ed90475", false},
		{"one more GPU", listedGPU + secondGPU, "", "differs  nvidia-smi GPU-00000000-0000-0000-0000-000000000000: metalplug has no", true},
		{"a disk", "", firstDisk, "same     kernel block/nvme0n1", false},
		{"one more disk", "", otherDisk, "differs  kernel block/nvme0n1: metalplug has no device with /sys/" + otherDisk, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tools, sys := filepath.Join(dir, "tools"), filepath.Join(dir, "sys")
			write(t, filepath.Join(tools, "nvidia-smi"), "#!/bin/sh\ncat <<END\n"+test.nvidia+"END\n")
			if test.disk != "" {
				write(t, filepath.Join(sys, test.disk, "model"), "made up\n")
				write(t, filepath.Join(sys, "class/block/nvme0n1/size"), "8\n")
				if err := os.Symlink(filepath.Join(sys, test.disk), filepath.Join(sys, "class/block/nvme0n1/device")); err != nil {
					t.Fatal(err)
				}
			}
			script := exec.Command("./report.sh", filepath.Join(dir, "report"), "--recording", "gpu-server")
			script.Env = append(os.Environ(), "METALPLUGCTL="+filepath.Join(programs, "metalplugctl"), "SYS="+sys, "PATH="+tools+":"+os.Getenv("PATH"))
			output, err := script.CombinedOutput()
			var exit *exec.ExitError
			if errors.As(err, &exit) != test.differs || !strings.Contains(string(output), test.want) {
				t.Errorf("%v, wanted %q:\n%s", err, test.want, output)
			}
		})
	}
}

// TestReportNeedsADirectory checks the exit code for an invalid command line, which differs from that for a difference.
func TestReportNeedsADirectory(t *testing.T) {
	output, err := exec.Command("./report.sh").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.HasPrefix(string(output), "usage: report.sh DIR") {
		t.Errorf("%v, %s", err, output)
	}
}

// write creates an executable file, and its parent directories.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
