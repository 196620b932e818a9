// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzMapping checks that no line of /proc/PID/maps, whose paths a process chooses, leads out of map_files.
func FuzzMapping(f *testing.F) {
	f.Add([]byte("7f0000000000-7f0000001000 r--p 00000000 00:06 1234 /dev/nvidia0"))
	f.Add([]byte("00400000-00401000 r-xp 00000000 fe:01 5 /bin/x (deleted)"))
	f.Add([]byte("7ffd-7ffe rw-p 00000000 00:00 0 [stack]"))
	f.Add([]byte("  "))
	f.Fuzz(func(t *testing.T, line []byte) {
		at, of, err := parseMapping(line)
		if err != nil {
			if at != (addresses{}) || of != (file{}) {
				t.Errorf("%q: %v, %+v, %v", line, at, of, err)
			}
			return
		}
		if name := at.String(); strings.Trim(name, "0123456789abcdef-") != "" || strings.Count(name, "-") != 1 {
			t.Errorf("the link of %q is %q", line, name)
		}
	})
}

// FuzzMount checks that no path in a line of /proc/PID/mountinfo makes a mount count as one without device nodes.
func FuzzMount(f *testing.F) {
	f.Add("36 35 98:0 /mnt1 ", "/mnt2", " rw,noatime master:1 - ext3 /dev/root rw,errors=continue")
	f.Add("30 1 0:27 / ", "/run - nfs x", " rw,nodev - tmpfs tmpfs rw")
	f.Fuzz(func(t *testing.T, before, path, after string) {
		const start, end = "36 35 98:0 / /", " rw,noatime shared:1 - ext4 /dev/root rw"
		escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`).Replace(path) // fs/proc_namespace.c, mangle
		for _, c := range escaped {
			if c < ' ' || c == 0x85 || c == 0xa0 || c > 0xff { // other characters that strings.Fields takes for a space
				return
			}
		}
		if id, d, m, err := parseMount(start + escaped + end); id != 36 || d != (device{98, 0}) || m || err != nil {
			t.Errorf("%q: %d, %v, %v, %v", start+escaped+end, id, d, m, err)
		}
		if _, _, m, err := parseMount(before + path + after); err != nil && m {
			t.Errorf("%q: %v, %v", before+path+after, m, err)
		}
	})
}

func FuzzPodOf(f *testing.F) {
	const uid = "03f3f104-3215-44f2-9686-d4dd1f05a7ed"
	f.Add("/kubepods/burstable/pod" + uid + "/crio-conmon-09d185410c4e25236cc24717f881589bb0978b24eafd101624e627a4dd8d3439")
	f.Add("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/x.scope")
	f.Add("/system.slice/containerd.service/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice:cri-containerd:x/init.scope")
	f.Add("/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid)
	f.Fuzz(func(t *testing.T, path string) {
		pod := podOf(path)
		if strings.Contains(pod, "/") || utf8.ValidString(path) && !utf8.ValidString(pod) {
			t.Errorf("podOf(%q) = %q", path, pod)
		}
		if again := podOf("/user.slice" + path); path != "" && path[0] == '/' && again != "" {
			t.Errorf("podOf(%q) = %q in user.slice", path, again)
		}
		if again := podOf("/prefix" + path); path != "" && path[0] == '/' && pod != "" && again != pod {
			t.Errorf("podOf(%q) = %q, below another directory %q", path, pod, again)
		}
		if got := podIn("0::" + path); !strings.Contains(path, "\n") && got != pod {
			t.Errorf("podIn(%q) = %q, want %q", path, got, pod)
		}
	})
}
