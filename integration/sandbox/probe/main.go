//go:build linux

// SPDX-License-Identifier: Apache-2.0

// Command probe shows which parts of the node a process can reach. It attempts accesses, and prints one line for each
// permitted access.
//
//	probe list           prints the paths of all files to try
//	probe listen KIND PATH...  listens on sockets until it is killed
//	probe web ADDRESS    listens on port 80, also of an address that it gives to the loopback interface, until it is killed
//	probe terminal       holds a terminal until it is killed
//	probe                tries all that it sees itself, and the paths on standard input
//
// It writes nothing, and opens no file whose opening has an effect, such as a watchdog.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// secret lists the directories whose files must not be readable.
var secret = []string{"/etc", "/var", "/run", "/root", "/home", "/boot", "/opt", "/srv", "/mnt", "/media", "/tmp", "/victim"}

// others lists the directories whose files must not be writable.
var others = []string{"/dev", "/sys", "/proc", "/usr"}

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "list":
		for _, path := range slices.Sorted(maps.Keys(walk())) {
			fmt.Println(path)
		}
	case len(os.Args) > 3 && os.Args[1] == "listen":
		if err := listen(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case len(os.Args) == 3 && os.Args[1] == "web":
		if err := web(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case len(os.Args) == 2 && os.Args[1] == "terminal":
		if err := terminal(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		r := reached{}
		r.files()
		r.rights()
		for _, line := range slices.Sorted(maps.Keys(r)) {
			fmt.Println(line)
		}
		fmt.Println("end")
	}
}

// listen creates sockets of a kind and waits until it is stopped. A name that begins with "@" is abstract.
func listen(kind string, names []string) error {
	kinds := map[string]int{"stream": unix.SOCK_STREAM, "dgram": unix.SOCK_DGRAM, "seqpacket": unix.SOCK_SEQPACKET}
	for _, name := range names {
		fd, err := unix.Socket(unix.AF_UNIX, kinds[kind], 0)
		if err != nil {
			return err
		}
		if name[0] != '@' {
			_ = os.MkdirAll(filepath.Dir(name), 0o755)
		}
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if kind != "dgram" {
			if err := unix.Listen(fd, 1000); err != nil {
				return err
			}
		}
	}
	fmt.Println("listening")
	time.Sleep(24 * time.Hour)
	return nil
}

// web adds another IPv4 address to the loopback interface, listens on port 80 of all addresses, and waits until it is
// stopped.
func web(address string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	alias, err := unix.NewIfreq("lo:1") // netdevice(7)
	if err == nil {
		number := netip.MustParseAddr(address).As4()
		err = alias.SetInet4Addr(number[:])
	}
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: 80})
	}
	if err == nil {
		err = unix.Listen(fd, 1000)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	time.Sleep(24 * time.Hour)
	return nil
}

// terminal keeps both sides of a terminal open (pts(4)), like a login, and waits until it is stopped.
func terminal() error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open /dev/ptmx: %w", err)
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return fmt.Errorf("number of the terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock the terminal: %w", err)
	}
	path := fmt.Sprintf("/dev/pts/%d", number)
	if _, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	time.Sleep(24 * time.Hour)
	return nil
}

// walk returns the files below the directories, by path.
func walk() map[string]fs.FileMode {
	all := make(map[string]fs.FileMode)
	own := map[string]bool{"/proc/self": true, "/proc/thread-self": true, "/proc/" + strconv.Itoa(os.Getpid()): true}
	for _, root := range slices.Concat(secret, others) {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case own[path], strings.HasPrefix(path, "/sys/kernel/debug"), strings.HasPrefix(path, "/sys/kernel/tracing"),
				process(path) > 1, strings.HasPrefix(path, "/proc/1/task/"):
				return fs.SkipDir
			case err == nil:
				all[path] = d.Type()
				if info, err := os.Lstat(path); err == nil { // the file that is mounted there
					all[path] = info.Mode().Type()
				}
			}
			return nil
		})
	}
	return all
}

// process returns the PID in the path of a /proc file, or 0.
func process(path string) int {
	rest, _ := strings.CutPrefix(path, "/proc/")
	name, _, _ := strings.Cut(rest, "/")
	pid, _ := strconv.Atoi(name)
	return pid
}

// reached has one line for each permitted access.
type reached map[string]bool

// note adds a line unless err means that the access was denied. If the access failed for another reason, it counts as
// permitted.
func (r reached) note(line string, err error) {
	for _, refused := range []error{unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOENT, unix.ENOSYS, unix.ENOTDIR, unix.ESRCH, unix.EAFNOSUPPORT, unix.ETXTBSY} {
		if errors.Is(err, refused) {
			return
		}
	}
	r[line] = true
}

// files tries all files that the probe sees, and the files that a process outside the sandbox has listed.
func (r reached) files() {
	all := walk()
	names := bufio.NewScanner(os.Stdin)
	for names.Scan() {
		path := names.Text()
		if name, ok := strings.CutPrefix(path, "abstract "); ok {
			r.connect(name, "abstract "+name)
			continue
		}
		if _, known := all[path]; !known {
			if info, err := os.Lstat(path); err == nil {
				all[path] = info.Mode().Type()
			} else { // the file may exist without being visible
				r.connect(path, "socket "+path)
			}
		}
	}
	for path, kind := range all {
		r.file(path, kind)
	}
	r.create("/")
}

func (r reached) file(path string, kind fs.FileMode) {
	name := path
	if pid := process(path); pid > 0 {
		name = "/proc/PID" + strings.TrimPrefix(path, "/proc/"+strconv.Itoa(pid))
	}
	if own := ownCgroup(); strings.HasPrefix(path, own) {
		name = "/sys/fs/cgroup/OWN" + strings.TrimPrefix(path, own)
	}
	hidden := slices.ContainsFunc(secret, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
	switch {
	case kind&fs.ModeSocket != 0:
		r.connect(path, "socket "+name)
	case kind&fs.ModeSymlink != 0:
		if process(path) > 0 { // root, cwd, exe, fd/N and ns/N lead to files of another process
			r.open("follow "+name, path, unix.O_PATH)
		}
	case kind&fs.ModeDevice != 0:
		r.open("device "+name, path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY)
		r.open("device "+name, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	case kind.IsDir():
		if hidden || strings.HasPrefix(path, "/dev") || strings.HasPrefix(path, "/usr") {
			r.create(path)
		}
	default: // a file or a pipe
		if hidden {
			r.open("read "+name, path, unix.O_RDONLY|unix.O_NONBLOCK)
		}
		if process(path) > 0 && slices.Contains([]string{"environ", "mem", "maps", "auxv"}, filepath.Base(path)) {
			r.open("read "+name, path, unix.O_RDONLY)
		}
		r.open("write "+name, path, unix.O_WRONLY|unix.O_NONBLOCK)
	}
}

// ownCgroup returns the cgroup directory of the probe.
var ownCgroup = sync.OnceValue(func() string {
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) { // the line for cgroup version 2 begins with 0:: (cgroups(7))
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return "/sys/fs/cgroup" + strings.TrimSpace(path)
		}
	}
	return "/sys/fs/cgroup/no such"
})

func (r reached) open(line, path string, flags int) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	r.note(line, err)
}

// create creates and removes a file in a directory.
func (r reached) create(dir string) {
	path := filepath.Join(dir, ".probe")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		f.Close()
		os.Remove(path)
		r["create "+dir] = true
	}
}

// connect tries to connect to a socket with each of the three socket types.
func (r reached) connect(name, line string) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			continue
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
		unix.Close(fd)
		if err == nil || errors.Is(err, unix.EAGAIN) {
			r[line] = true
		}
	}
}

// rights tries operations that do not concern files.
func (r reached) rights() {
	for name, family := range map[string]int{
		"AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK, "AF_PACKET": unix.AF_PACKET,
		"AF_VSOCK": unix.AF_VSOCK, "AF_ALG": unix.AF_ALG, "AF_UNIX": unix.AF_UNIX,
	} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		if errors.Is(err, unix.ESOCKTNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
			err = nil
		}
		r.note("family "+name, err)
	}
	call := func(line string, number, a, b, c, d uintptr) {
		_, _, errno := unix.RawSyscall6(number, a, b, c, d, 0, 0)
		if errno == 0 {
			r.note(line, nil)
			return
		}
		r.note(line, errno)
	}
	none := uintptr(unsafe.Pointer(&[]byte("none\x00")[0]))
	tmp := uintptr(unsafe.Pointer(&[]byte("/tmp\x00")[0]))
	call("mount", unix.SYS_MOUNT, none, tmp, none, 0)
	call("umount", unix.SYS_UMOUNT2, tmp, 1<<20, 0, 0) // an invalid flag
	call("module load", unix.SYS_INIT_MODULE, none, 0, none, 0)
	call("reboot", unix.SYS_REBOOT, 1, 2, 3, 0) // wrong magic numbers
	call("bpf", unix.SYS_BPF, 1<<20, 0, 0, 0)
	call("perf event", unix.SYS_PERF_EVENT_OPEN, none, 0, ^uintptr(0), ^uintptr(0))
	call("io_uring", unix.SYS_IO_URING_SETUP, 0, 0, 0, 0)
	call("keyring", unix.SYS_KEYCTL, 0, ^uintptr(2), 0, 0) // KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING
	call("user namespace", unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0, 0)
	call("clock", unix.SYS_CLOCK_SETTIME, 0, 0, 0, 0)
	call("host name", unix.SYS_SETHOSTNAME, none, 1<<20, 0, 0)
	call("ptrace process 1", unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0)
	buffer := make([]byte, 1)
	_, err := unix.ProcessVMReadv(1, []unix.Iovec{{Base: &buffer[0], Len: 1}}, []unix.RemoteIovec{{Base: 4096, Len: 1}}, 0)
	r.note("memory of process 1", err)
	call("signal to process 1", unix.SYS_KILL, 1, 0, 0, 0)
	call("limits of process 1", unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, 0, 0)
	if pid, err := unix.PidfdOpen(1, 0); err == nil {
		call("descriptors of process 1", unix.SYS_PIDFD_GETFD, uintptr(pid), 0, 0, 0)
		call("namespaces of process 1", unix.SYS_SETNS, uintptr(pid), unix.CLONE_NEWUTS, 0, 0)
		unix.Close(pid)
	}
	if _, err := unix.Open("/usr/bin/true", unix.O_RDONLY, 0); err == nil {
		r.note("execute other programs", unix.Access("/usr/bin/true", unix.X_OK))
	}
	r.capabilities()
	r.passed()
}

// passed tries to connect to other machines with the network sockets that systemd has passed (sd_listen_fds(3)). After
// connect(2) with AF_UNSPEC, a listening socket can connect again.
func (r reached) passed() {
	n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	for fd := 3; fd < 3+n; fd++ {
		if family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || family != unix.AF_INET {
			continue
		}
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1}) // this also limits connect(2), see socket(7)
		for _, text := range []string{"192.0.2.1", "127.0.0.1"} {
			nowhere := unix.RawSockaddr{Family: unix.AF_UNSPEC}
			_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&nowhere)), unsafe.Sizeof(nowhere))
			if errno != 0 {
				continue
			}
			if unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: netip.MustParseAddr(text).As4()}) == nil {
				r["network "+text] = true
			}
		}
	}
}

// capabilities records the effective capabilities that apply to the node, by number. Only capabilities in the initial user
// namespace apply to the node.
func (r reached) capabilities() {
	ids, _ := os.ReadFile("/proc/self/uid_map")
	if !strings.Contains(string(ids), "4294967295") {
		return
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		hex, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		set, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		for number, name := range map[int]string{2: "CAP_DAC_READ_SEARCH", 19: "CAP_SYS_PTRACE", 21: "CAP_SYS_ADMIN", 40: "CAP_CHECKPOINT_RESTORE"} {
			if set&(1<<number) != 0 {
				r["capability "+name] = true
				set &^= 1 << number
			}
		}
		for number := range 64 {
			if set&(1<<number) != 0 {
				r["capability "+strconv.Itoa(number)] = true
			}
		}
	}
}
