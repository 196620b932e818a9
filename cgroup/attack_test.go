// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/integration/need"
)

// maxResident is the maximum memory of metalplug-holders under each attack. It is less than MemoryMax= of the unit.
const maxResident = 64 << 10 // KiB

// eight are the nodes of the test's request. A process has the first one open, and no process has the other seven open.
var eight = []cgroup.Number{full, {Major: 240}, {Major: 240, Minor: 1}, {Major: 240, Minor: 2}, {Block: true, Major: 240}, {Block: true, Major: 240, Minor: 1}, {Block: true, Major: 240, Minor: 2}, {Block: true, Major: 240, Minor: 3}}

// attacks are roles of unprivileged processes that hide which devices they and other processes have open.
var attacks = map[string]func(args []string) error{
	"role=churn":      churn,
	"role=names":      names,
	"role=groups":     groups,
	"role=threads":    threads,
	"role=forks":      forks,
	"role=execs":      execs,
	"role=vfork":      vfork,
	"role=undumpable": runUndumpable,
	"role=fuse":       fuse,
	"role=serve":      serve,
	"role=overlay":    overlay,
	"role=moving":     moveMapping,
	"role=chain":      chain,
	"role=relay":      relay,
	"role=shuffle":    shuffle,
}

// churn continuously replaces the oldest of 3,000 mappings. They map memory, or removed files of a directory.
func churn(args []string) error {
	if err := becomeNobody(); err != nil {
		return err
	}
	mapped := make(chan []byte, 3000)
	add := func() error {
		fd, err := unix.MemfdCreate("x", 0)
		if args[0] != "memory" {
			fd, err = unix.Open(args[0], unix.O_TMPFILE|unix.O_RDWR, 0o600)
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		mapped <- m
		return err
	}
	for range cap(mapped) {
		if err := add(); err != nil {
			return err
		}
	}
	go func() {
		for {
			unix.Munmap(<-mapped)
			add()
		}
	}()
	return nil
}

// names maps a file through 60,000 links below a directory, with paths of more than 4 KiB.
func names(args []string) error {
	dir, err := unix.Open(args[0], unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	for range 20 {
		name := strings.Repeat("d", 240)
		if err := unix.Mkdirat(dir, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		below, err := unix.Openat(dir, name, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		unix.Close(dir)
		dir = below
	}
	for i := range 60_000 {
		name := fmt.Sprintf("%d", i)
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_RDONLY, 0o644)
		if err != nil {
			return err
		}
		if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return err
		}
		unix.Close(fd)
	}
	return becomeNobody()
}

// groups runs continuously with as many groups as possible, which the kernel formats in each /proc/PID/status.
func groups([]string) error {
	go func() {
		for {
			unix.Getppid() // a loop without a body is an error for staticcheck
		}
	}()
	return errors.Join(syscall.Setgroups(make([]int, 65_536)), becomeNobody())
}

// threads starts threads that have their own descriptor tables. The last one opens a node.
func threads(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := becomeNobody(); err != nil {
		return err
	}
	runtime.GOMAXPROCS(2)
	errs := make(chan error)
	for i := range n {
		go func() {
			runtime.LockOSThread()
			err := unix.Unshare(unix.CLONE_FILES)
			if i == n-1 {
				err = errors.Join(err, open(args[1]))
			}
			errs <- err
			select {}
		}()
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// forks starts processes endlessly, each of which ends at once.
func forks([]string) error {
	errs, begin := make(chan error), make(chan struct{})
	for range 4 {
		go func() {
			runtime.LockOSThread() // children of the thread inherit the restriction
			errs <- unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0)
			<-begin
			for {
				exec.Command("/bin/true").Run()
			}
		}()
	}
	err := errors.Join(<-errs, <-errs, <-errs, <-errs, becomeNobody())
	close(begin)
	return err
}

// execs repeatedly executes itself with execve, with a node open.
func execs(args []string) error {
	if len(args) == 2 { // the new program continues
		return unix.Exec(args[1], append([]string{os.Args[0], os.Args[1]}, args...), nil)
	}
	own, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0)
	if err := errors.Join(err, open(args[0]), becomeNobody()); err != nil {
		return err
	}
	fmt.Println("ready")
	path := fmt.Sprintf("/proc/self/fd/%d", own)
	return unix.Exec(path, []string{os.Args[0], os.Args[1], args[0], path}, nil)
}

// vfork opens a node and waits in state D for a child that never executes a program (vfork(2)).
func vfork(args []string) error {
	if err := errors.Join(open(args[0]), becomeNobody()); err != nil {
		return err
	}
	fmt.Println("ready")
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
		for {
			syscall.RawSyscall(unix.SYS_PPOLL, 0, 0, 0)
		}
	}
	return errno
}

// chain moves itself into a cgroup, opens or maps a node and starts a process, which has the same files. Each process then ends
// immediately, and so does the chain when the test no longer reads its output.
func chain(args []string) error {
	hold := map[string]func(string) error{"/dev/full": open, "/dev/zero": mapAndClose}[args[0]]
	if err := errors.Join(os.WriteFile(args[1], []byte("0"), 0), hold(args[0]), becomeNobody()); err != nil {
		return err
	}
	fmt.Println("ready")
	for out, now := (unix.PollFd{Fd: 1}), (unix.Timespec{}); out.Revents == 0; {
		syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&out)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 || pid != 0 {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	return nil
}

// shuffle continuously moves a node between two descriptors. The second argument is the number of descriptors between them. The
// time between two moves grows with this number.
func shuffle(args []string) error {
	between, err := strconv.Atoi(args[1])
	const low = 100
	high := low + between + 1
	for fd := low; fd < high; fd++ {
		err = errors.Join(err, unix.Dup3(0, fd, 0))
	}
	node, openErr := unix.Open(args[0], unix.O_RDONLY, 0)
	go func() {
		for from, to := node, high; ; from, to = to, low+high-to {
			for range 1000 * between {
			}
			unix.Dup3(from, to, 0)
			unix.Close(from)
		}
	}()
	return errors.Join(err, openErr, becomeNobody())
}

// relay opens a node in a thread with its own descriptor table. The thread starts another thread, which copies the table and does
// the same. The first thread then exits. Each thread first counts down from the second argument. If there is a third argument, the
// thread-group leader exits.
func relay(args []string) error {
	count, err := strconv.ParseUint(args[1], 10, 32)
	code := []byte{
		0xb9, 0, 0, 0, 0, // again: mov ecx, count
		0xff, 0xc9, 0x75, 0xfc, // dec ecx; jnz to dec
		0xbf, 0, 0, 0, 0, // mov edi, flags of clone
		0x31, 0xf6, 0x31, 0xd2, 0x45, 0x31, 0xd2, 0x45, 0x31, 0xc0, // xor esi, esi; edx; r10d; r8d
		0xb8, unix.SYS_CLONE & 0xff, 0, 0, 0, // mov eax, SYS_CLONE
		0x0f, 0x05, 0x85, 0xc0, 0x74, 0xdd, // syscall; test eax, eax; jz to again
		0x31, 0xff, 0xb8, unix.SYS_EXIT & 0xff, 0, 0, 0, 0x0f, 0x05, // exit of the thread
	}
	binary.LittleEndian.PutUint32(code[1:], uint32(count))
	binary.LittleEndian.PutUint32(code[10:], unix.CLONE_VM|unix.CLONE_SIGHAND|unix.CLONE_THREAD|unix.CLONE_FS)
	page, mapErr := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err := errors.Join(err, mapErr, becomeNobody()); err != nil {
		return err
	}
	copy(page, code)
	start := unsafe.Pointer(&page) // a function value points to the address of the code
	errs := make(chan error)
	go func() {
		runtime.LockOSThread()
		errs <- errors.Join(unix.Unshare(unix.CLONE_FILES), open(args[0]))
		(*(*func())(unsafe.Pointer(&start)))()
	}()
	if err := <-errs; err != nil || len(args) < 3 {
		return err
	}
	fmt.Println("ready")
	syscall.Syscall(unix.SYS_EXIT, 0, 0, 0) // ends the thread, not the process
	return nil
}

// runUndumpable opens a node and prevents other processes from inspecting it (PR_SET_DUMPABLE of prctl(2)).
func runUndumpable(args []string) error {
	return errors.Join(open(args[0]), becomeNobody(), unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// moveMapping continuously moves the mapping of a removed file of a directory to another address.
func moveMapping(args []string) error {
	fd, err := unix.Open(args[0], unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	const at, step, places = 0x200000000000, 1 << 20, 1 << 16
	_, _, errno := unix.Syscall6(unix.SYS_MMAP, at, 4096, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED, uintptr(fd), 0)
	if errno != 0 {
		return errno
	}
	unix.Close(fd)
	go func() {
		for i := uintptr(0); ; i++ {
			from, to := at+i%places*step, at+(i+1)%places*step
			unix.Syscall6(unix.SYS_MREMAP, from, 4096, 4096, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to, 0)
		}
	}()
	return becomeNobody()
}

// private gives the thread its own mount namespace.
func private() error {
	return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// fuse opens the root of a file system whose server no longer answers, as a user that the server allows (fuse(4)). mode
// is the mode of the root. If the root is a regular file, the process also maps it and opens a node. With an additional
// argument, threads wait for a page of the file. fuse prints the process ID of the server.
func fuse(args []string) error {
	uid, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	mode := args[2]
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var end [2]int // a pipe for the server's answers
	options := fmt.Sprintf("fd=%d,rootmode=%s,user_id=%d,group_id=%d", dev, mode, uid, uid)
	if err := errors.Join(private(), unix.Mount("x", args[0], "fuse", unix.MS_NOSUID, options), unix.Pipe2(end[:], unix.O_CLOEXEC)); err != nil {
		return err
	}
	server := exec.Command("/proc/self/exe", "role=serve", mode)
	server.ExtraFiles = []*os.File{os.NewFile(uintptr(dev), "fuse"), os.NewFile(uintptr(end[0]), "end")}
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := server.Start(); err != nil {
		return err
	}
	fmt.Println(server.Process.Pid)
	for _, f := range server.ExtraFiles {
		f.Close()
	}
	if uid != 0 {
		if err := becomeNobody(); err != nil {
			return err
		}
	}
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_NONBLOCK, 0)
	var page []byte
	if mode == regular && err == nil {
		var st unix.Stat_t
		if err = errors.Join(open("/dev/full"), unix.Fstat(fd, &st)); err == nil { // the kernel asks the server for the size
			page, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		}
	}
	unix.Close(end[1])
	if len(args) > 3 && err == nil {
		for _, wait := range []func(){
			func() { runtime.KeepAlive(page[0]) },
			func() { unix.Pread(fd, make([]byte, 1), 0) },
		} {
			go func() {
				runtime.LockOSThread()
				wait()
			}()
		}
	}
	return err
}

// serve answers the requests to the root of [fuse] until the pipe at descriptor 4 is closed, and then stops answering.
func serve(args []string) error {
	const dev, end = 3, 4
	kind, err := strconv.ParseUint(args[0], 8, 32)
	if err != nil {
		return err
	}
	request := make([]byte, 1<<18)
	for {
		both := []unix.PollFd{{Fd: dev, Events: unix.POLLIN}, {Fd: end, Events: unix.POLLIN}}
		if _, err := unix.Poll(both, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil || both[1].Revents != 0 {
			return err
		}
		n, err := unix.Read(dev, request)
		if err != nil || n < 40 {
			return err
		}
		answer := make([]byte, 16)
		copy(answer[8:], request[8:16])
		switch binary.LittleEndian.Uint32(request[4:]) { // include/uapi/linux/fuse.h
		case 3: // FUSE_GETATTR
			answer = append(answer, make([]byte, 104)...)
			binary.LittleEndian.PutUint64(answer[32:], 1)    // inode
			binary.LittleEndian.PutUint64(answer[40:], 4096) // size
			binary.LittleEndian.PutUint32(answer[92:], uint32(kind)|0o666)
			binary.LittleEndian.PutUint32(answer[96:], 1) // links
		case 26: // FUSE_INIT
			answer = append(answer, make([]byte, 64)...)
			binary.LittleEndian.PutUint32(answer[16:], 7)
			binary.LittleEndian.PutUint32(answer[20:], 31)
			binary.LittleEndian.PutUint32(answer[36:], 4096)
		default:
			binary.LittleEndian.PutUint32(answer[4:], ^uint32(unix.ENOSYS)+1)
		}
		binary.LittleEndian.PutUint32(answer, uint32(len(answer)))
		unix.Write(dev, answer)
	}
}

// fuseChild starts [fuse]. When the server ends, the kernel ends all calls that wait for it. Only then can the test end
// the process.
func fuseChild(t *testing.T, args ...string) (pid int) {
	t.Helper()
	pid, said := child(t, "fuse", args...)
	server, err := strconv.Atoi(said[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(server, unix.SIGKILL) })
	return pid
}

// File types of the root directory that [fuse] mounts (inode(7)).
const (
	directory = "40000"
	pipe      = "10000"
	regular   = "100000"
)

// overlay opens one node of an overlay mount and maps another.
func overlay(args []string) error {
	dir := args[0]
	err := errors.Join(private(), unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	for _, name := range []string{"lower", "upper", "work", "all"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	return errors.Join(err, unix.Mknod(dir+"/lower/zero", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))),
		unix.Mount("overlay", dir+"/all", "overlay", 0, fmt.Sprintf("lowerdir=%s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)),
		unix.Mknod(dir+"/all/full", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))),
		open(dir+"/all/full"), mapAndClose(dir+"/all/zero"))
}

// runHolders returns the answer of metalplug-holders about [eight], and the maximum memory of the program in KiB.
func runHolders(t *testing.T) (a cgroup.Answer, resident int) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"nodes": eight})
	if err != nil {
		t.Fatal(err)
	}
	text, resident = ask(t, "/proc", string(text))
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return a, resident
}

// ask sends a request to a metalplug-holders process. It returns the answer and the maximum memory in KiB.
func ask(t *testing.T, proc, request string) (answer []byte, resident int) {
	t.Helper()
	end, helper, stderr := startHelper(t, proc, request)
	defer unix.Close(end)
	answer = make([]byte, 1<<16)
	n, err := unix.Read(end, answer)
	if err := errors.Join(err, helper.Wait()); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	used := helper.ProcessState
	t.Logf("%v of processor time, %v of it in the kernel", used.UserTime()+used.SystemTime(), used.SystemTime())
	_, after, _ := strings.Cut(stderr.String(), "VmHWM:")
	if _, err := fmt.Sscanf(after, "%d kB", &resident); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	return answer[:n], resident
}

// startHelper starts a metalplug-holders process and sends a request. It returns the socket for the answer.
func startHelper(t *testing.T, proc, request string) (end int, helper *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.NewFile(uintptr(ends[1]), "socket")
	defer stdin.Close()
	helper, stderr = exec.Command(own), new(bytes.Buffer)
	helper.Args[0], helper.Stdin, helper.Stderr = cgroup.Program, stdin, stderr
	helper.Env = []string{"TELL_MEMORY=1", "PROC=" + proc, "CLOCK=" + os.Getenv("CLOCK")}
	_, sendErr := unix.Write(ends[0], []byte(request))
	if err := errors.Join(sendErr, helper.Start()); err != nil {
		t.Fatal(err)
	}
	return ends[0], helper, stderr
}

// TestAskerHangsUp checks that metalplug-holders ends, and does not finish its search, if the asker no longer waits.
func TestAskerHangsUp(t *testing.T) {
	proc := newTree(t)
	for pid := range 100 { // the kernel does not answer about these processes, so the search would take seconds
		proc.process(100+pid, "x", "S", 0, 1)
		proc.pipe(fmt.Sprintf("%d/maps", 100+pid))
	}
	end, helper, stderr := startHelper(t, proc.dir, `{"nodes":["c 1:3"]}`)
	pipe, err := os.OpenFile(filepath.Join(proc.dir, "100/maps"), os.O_WRONLY, 0) // waits for the search
	err = errors.Join(err, unix.Close(end), helper.Wait(), pipe.Close())
	if err != nil || stderr.Len() > 0 { // at its end, Serve would return and TestMain would print the memory
		t.Errorf("%v: %s", err, stderr)
	}
}

func emptyFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// onHost skips a test that inspects all processes of the host.
func onHost(t *testing.T) {
	t.Helper()
	needsRoot(t)
	if space, err := os.Readlink("/proc/self/ns/pid"); space != hostPIDs {
		need.Lacks(t, "root", "this is not the host's PID namespace: %s, %v", space, err)
	}
}

// TestHoldersUnderAttack checks that the request for eight devices is answered completely and in bounded memory while
// unprivileged processes attack. "make bench" measures the duration.
func TestHoldersUnderAttack(t *testing.T) {
	onHost(t)
	dir := "/dev/shm"
	holder := func(role string, args ...string) func(t *testing.T) []int {
		return func(t *testing.T) []int {
			pid, _ := child(t, role, args...)
			return []int{pid}
		}
	}
	for _, c := range []struct {
		name  string
		start func(t *testing.T) []int // processes that hold the first requested device
	}{
		{"memory that is mapped again", func(t *testing.T) []int {
			for range 4 {
				child(t, "churn", "memory")
			}
			return nil
		}},
		{"removed files that are mapped again", func(t *testing.T) []int {
			for i := range 4 { // nodes can be opened in one of the directories
				child(t, "churn", [...]string{dir, "/var/tmp"}[i%2])
			}
			return nil
		}},
		{"long names", func(t *testing.T) []int {
			dir, err := os.MkdirTemp(dir, "names")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			for range 3 {
				child(t, "names", dir)
			}
			return nil
		}},
		{"threads with tables of their own", holder("threads", "8000", "/dev/full")},
		{"forks", func(t *testing.T) []int {
			child(t, "forks")
			return nil
		}},
		{"state D", func(t *testing.T) []int {
			pid, _ := child(t, "vfork", "/dev/full")
			awaitState(t, pid, "D")
			return []int{pid}
		}},
		{"not dumpable", holder("undumpable", "/dev/full")},
		{"namespaces of its own", func(t *testing.T) []int {
			pid, _ := childWith(t, &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}},
			}, "open", "/dev/full")
			return []int{pid}
		}},
		{"a file server that does not answer", func(t *testing.T) []int {
			fuseChild(t, t.TempDir(), "0", directory)
			return nil
		}},
		{"a mapped file of such a server", func(t *testing.T) []int {
			return []int{fuseChild(t, emptyFile(t), "0", regular)}
		}},
		{"threads that wait for such a server", func(t *testing.T) []int {
			return []int{fuseChild(t, emptyFile(t), "0", regular, "wait")}
		}},
		{"nodes in an overlay", func(t *testing.T) []int {
			pid, _ := child(t, "overlay", t.TempDir())
			return []int{pid}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			holder, _ := child(t, "open", "/dev/full")
			pids := append(inPod(t, c.start), holder)
			a, resident := runHolders(t)
			t.Logf("%d MiB", resident>>10)
			unread := c.name != "forks" && slices.ContainsFunc(a.Unread, ofPod) // new processes may appear in each round
			if got := leaders(a.Holders, pids...); len(got) != len(pids) || unread {
				t.Errorf("%+v of %v are found, %+v unread", got, pids, a.Unread)
			}
			if resident > maxResident {
				t.Errorf("metalplug-holders takes %d KiB of memory, at most %d", resident, maxResident)
			}
		})
	}
}

// inPod starts processes in a pod. On some machines even root cannot read all processes of the host, so the tests ask about those
// of the pod.
func inPod(t *testing.T, start func(t *testing.T) []int) []int {
	t.Helper()
	r := realPod(t, 1)
	r.move(os.Getpid(), "kubepods/pod"+uid)
	defer r.move(os.Getpid(), "")
	t.Cleanup(r.awaitEmpty)
	return start(t)
}

// realPod is [realRoot] with the cgroup of a pod.
func realPod(t *testing.T, version int) root {
	t.Helper()
	r := realRoot(t, version)
	r.do("+kubepods", "+kubepods/pod"+uid)
	return r
}

// awaitEmpty waits until the processes of the pod have ended.
func (r root) awaitEmpty() {
	procs := filepath.Join(r.dir, "kubepods/pod"+uid, "cgroup.procs")
	for left, _ := os.ReadFile(procs); len(left) > 0; left, _ = os.ReadFile(procs) {
	}
}

// ofPod reports whether processes of the pod of [inPod] were not read.
func ofPod(u cgroup.Unread) bool { return u.PodUID == uid }

// TestHoldersUnderAllAttacks finds the holders among many processes while a pod runs all attacks at the same time. The
// devices of other pods must not be affected.
func TestHoldersUnderAllAttacks(t *testing.T) {
	onHost(t)
	t.Setenv("CLOCK", "real")
	before, _ := runHolders(t)
	r := realPod(t, 1)
	for range 500 {
		idle := exec.Command("sleep", "infinity")
		if err := idle.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			idle.Process.Kill()
			idle.Wait()
		})
	}
	holder, _ := child(t, "open", "/dev/full")
	for _, attack := range [][]string{
		{"churn", "memory"},
		{"churn", "/dev/shm"},
		{"threads", "8000", "/dev/full"},
		{"forks"},
		{"execs", "/dev/full"},
		{"vfork", "/dev/full"},
		{"undumpable", "/dev/full"},
		{"moving", "/var/tmp"},
		{"groups"},
	} {
		pid, _ := child(t, attack[0], attack[1:]...)
		r.move(pid, "kubepods/pod"+uid)
		t.Cleanup(func() { r.move(pid, "") })
	}
	a, resident := runHolders(t)
	t.Logf("%d MiB, %d processes hold one, unread: %+v", resident>>10, len(a.Holders), a.Unread)
	if len(leaders(a.Holders, holder)) != 1 || resident > maxResident {
		t.Errorf("process %d is not found, or it takes %d KiB", holder, resident)
	}
	mine := func(u cgroup.Unread) bool { return u.PodUID == uid && !u.Any }
	if len(slices.DeleteFunc(a.Unread, mine)) != len(before.Unread) {
		t.Errorf("unread: %+v, before %+v", a.Unread, before.Unread)
	}
}

// TestHiding checks that each search names a pod, or counts it as unread, while its processes hide an open or mapped node.
func TestHiding(t *testing.T) {
	onHost(t)
	if runtime.GOARCH != "amd64" {
		need.Lacks(t, "root", "the threads run machine code of amd64")
	}
	for name, args := range map[string][]string{
		"threads, as fast as possible":            {"relay", "/dev/full", "1"},
		"threads, as fast as possible, no leader": {"relay", "/dev/full", "1", "exits"},
		"threads, fast, no leader":                {"relay", "/dev/full", "100000", "exits"},
		"processes":                               {"chain", "/dev/full"},
		"processes that map the node":             {"chain", "/dev/zero"},
		"descriptors":                             {"shuffle", "/dev/full", "0"},
		"descriptors with others between them":    {"shuffle", "/dev/full", "800"},
		"programs":                                {"execs", "/dev/full"},
	} {
		for version := 1 + strings.Count(args[0], "chain"); version <= 2; version++ { // version 1 does not show the pod of a process that exits
			t.Run(fmt.Sprintf("%s, cgroup %d", name, version), func(t *testing.T) {
				r := realPod(t, version)
				t.Cleanup(r.awaitEmpty)
				if args[0] == "chain" {
					child(t, "chain", args[1], filepath.Join(r.dir, "kubepods/pod"+uid, "cgroup.procs"))
				} else {
					pid, _ := child(t, args[0], args[1:]...)
					r.move(pid, "kubepods/pod"+uid)
				}
				for range 10 {
					a, _ := cgroup.Holders("/proc", []cgroup.Number{full, zero}, 0)
					if !strings.Contains(fmt.Sprint(a), uid) {
						t.Errorf("the pod that holds the node is neither named nor unread: %+v", a)
					}
				}
			})
		}
	}
}

// TestEndedProcess checks that a process of a pod that ends while it is being read is not unread, even if its list of threads
// was not complete. It is unread if it still runs.
func TestEndedProcess(t *testing.T) {
	for after, unread := range map[string]bool{"gone": false, "zombie/stat": false, "running/stat": true} {
		proc := newTree(t)
		proc.write("zombie/stat", "7 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n")
		proc.write("running/stat", "7 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 1 0 0\n")
		proc.process(7, "x", "S", 0, 2)
		proc.write("7/cgroup", "0::/kubepods/poda/"+id1+"\n")
		proc.link("7/task/7", "../..")
		proc.write("7/task/a/x", "") // each directory counts as a thread
		proc.write("7/task/b/x", "")
		maps, stat, ended := proc.pipe("7/maps"), filepath.Join(proc.dir, "7/stat"), make(chan error)
		go func() {
			pipe, err := os.OpenFile(maps, os.O_WRONLY, 0) // waits for the scan
			ended <- errors.Join(err, os.Remove(maps), os.WriteFile(maps, nil, 0o600), os.Remove(stat), os.Symlink("../"+after, stat), pipe.Close())
		}()
		a, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
		if err := errors.Join(err, <-ended); err != nil || (a.Err("a") != nil) != unread {
			t.Errorf("%s: %+v, %v", after, a, err)
		}
	}
}

// TestFilesOfAnotherUser gives root a file on another user's file server that root must not inspect (fuse(4),
// allow_other). SELinux forbids the same for unlabelled files. Such a file does not keep a device in use.
func TestFilesOfAnotherUser(t *testing.T) {
	onHost(t)
	for _, mode := range []string{directory, pipe, regular} { // the last is also mapped
		at := t.TempDir() // searchable by that user
		if err := errors.Join(os.Chmod(filepath.Dir(at), 0o755), os.Chmod(at, 0o755), os.WriteFile(at+"/file", nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if mode != directory {
			at += "/file"
		}
		inPod(t, func(t *testing.T) []int { return []int{fuseChild(t, at, "65534", mode)} })
	}
	if a, _ := runHolders(t); slices.ContainsFunc(a.Unread, ofPod) {
		t.Errorf("unread: %+v", a.Unread)
	}
}

// TestStuck checks that a process counts as unread if the kernel does not answer about it, but only for devices that
// its pod could have. No other process of that pod is read. All processes of other pods and of the host are read.
func TestStuck(t *testing.T) {
	const pods = 300 // more than the number of threads that may wait
	for _, c := range []struct {
		name   string
		pods   int // number of pods that have stuck processes
		each   int
		unread int
		found  bool // set if pod b must be found, because not all threads may wait before it is read
	}{
		{"many processes of a pod", 1, 40, 40, true},
		{"some pods", 5, 2, 10, true},
		{"many pods", 40, 1, 40, true},
		{"many pods with many processes", 40, 5, 200, true},
		{"more pods than threads may wait", pods, 1, pods, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proc := newTree(t)
			var fifos []string
			add := func(pid int, pod string) {
				proc.process(pid, "x", "S", 0, 1)
				proc.write(fmt.Sprintf("%d/cgroup", pid), "0::/kubepods/pod"+pod+"/"+id1+"\n")
			}
			pid := 100
			for pod := range c.pods {
				for range c.each {
					add(pid, fmt.Sprint("a", pod))
					fifos = append(fifos, proc.pipe(fmt.Sprintf("%d/maps", pid)))
					pid++
				}
			}
			add(90000, "b")
			proc.link("90000/fd/0", "/dev/null")
			proc.process(90001, "host", "S", 0, 1)
			proc.link("90001/fd/0", "/dev/null")
			a, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
			release(t, fifos)
			if err != nil {
				t.Fatal(err)
			}
			want := []cgroup.Holder{{PID: 90001, Comm: "host", Number: null}}
			found := c.found || len(a.Holders) > 1
			if found {
				want = slices.Insert(want, 0, cgroup.Holder{PID: 90000, Comm: "x", Number: null, PodUID: "b"})
			}
			if !slices.Equal(a.Holders, want) {
				t.Errorf("holders are %+v, want %+v", a.Holders, want)
			}
			if a.Err() != nil || (a.Err("b") == nil) != found || a.Err("a0") == nil {
				t.Errorf("unread: %+v", a.Unread)
			}
			count := 0
			for _, u := range slices.DeleteFunc(a.Unread, func(u cgroup.Unread) bool { return u.PodUID == "b" }) {
				count += u.Count
			}
			if count != c.unread {
				t.Errorf("%d processes are unread, want %d", count, c.unread)
			}
		})
	}
}

// release ends the scanners that wait for writers.
func release(t *testing.T, fifos []string) {
	t.Helper()
	var writers sync.WaitGroup
	for _, path := range fifos {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.ENXIO) { // no reader is waiting
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		writers.Go(func() { unix.Close(fd) })
	}
	writers.Wait()
}

// TestTimeOfPods checks that pods whose processes take long are unread after a limited time, and that other pods are still read.
// The time of the host and of a privileged pod has no limit. The clock advances with each call.
func TestTimeOfPods(t *testing.T) {
	proc := newTree(t)
	for fd := range 5000 {
		proc.link(fmt.Sprintf("many/%d", fd), proc.dir)
	}
	add := func(pid int, pod, cap, fd string) {
		proc.process(pid, "x", "R", 0, 1)
		proc.write(fmt.Sprintf("%d/cgroup", pid), "0::"+pod+"\n")
		proc.write(fmt.Sprintf("%d/status", pid), "Name:\tx\nCapBnd:\t"+cap+"\n")
		proc.link(fmt.Sprintf("%d/ns/user", pid), "user:[4026531837]")
		proc.link(fmt.Sprintf("%d/task/%[1]d", pid), "../..")
		proc.remove(fmt.Sprintf("%d/fd", pid))
		proc.link(fmt.Sprintf("%d/fd", pid), "../"+fd)
	}
	proc.link("one/0", "/dev/null")
	proc.link("many/9999", "/dev/null")
	for pid := 100; pid < 140; pid++ {
		add(pid, fmt.Sprintf("/kubepods/poda%d/%s", pid%20, id1), "0", "many")
	}
	add(200, "/kubepods/podb/"+id1, "0", "one")
	add(201, "/kubepods/podp/"+id1, "1ffffffffff", "many")
	add(202, "/system.slice/x.service", "0", "many")
	var ticks atomic.Int64
	defer func(frozen func() time.Time) { *cgroup.Clock = frozen }(*cgroup.Clock)
	*cgroup.Clock = func() time.Time { return time.Unix(0, ticks.Add(20_000)) }
	a, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
	for _, pid := range []int{200, 201, 202} {
		if len(leaders(a.Holders, pid)) != 1 {
			t.Errorf("process %d is not found: %+v", pid, a.Holders)
		}
	}
	for _, u := range a.Unread {
		if u.PodUID[0] != 'a' || u.Any || u.Count < 1 || u.Count > 2 || !strings.Contains(u.Cause, "too long") {
			t.Errorf("unread: %+v", u)
			continue
		}
		// On a busy machine, the scan may read one of the pod's two processes in time. It then reports this process as a holder.
		known := u.Count
		for pid := 100; pid < 140; pid++ {
			if u.PodUID == fmt.Sprintf("a%d", pid%20) {
				known += len(leaders(a.Holders, pid))
			}
		}
		if known < 2 {
			t.Errorf("a process of pod %s is neither read nor unread: %+v", u.PodUID, u)
		}
	}
	if taken := time.Duration(ticks.Load()); err != nil || len(a.Unread) != 20 || taken > 4*time.Second {
		t.Errorf("%d pods are unread after %v, %v", len(a.Unread), taken, err)
	}
}

// TestReplacedMappings lists another file each time that the mappings are read. Each file has already vanished. A file that
// the next list does not contain is no longer mapped.
func TestReplacedMappings(t *testing.T) {
	proc := newTree(t)
	maps := proc.pipe("1/maps")
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- replaceMappings(maps, done) }()
	a, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
	if err != nil || a.Unread != nil {
		t.Errorf("Holders = %+v, %v", a, err)
	}
	close(done)
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
		if reader, err := os.OpenFile(maps, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil { // replaceMappings may wait for it
			reader.Close()
		}
		runtime.Gosched()
	}
}

// replaceMappings writes another file into each pipe that a reader opens, and puts a new pipe into its place.
func replaceMappings(maps string, done chan struct{}) error {
	for inode := 1; ; inode++ {
		pipe, err := os.OpenFile(maps, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer pipe.Close()
		select {
		case <-done:
			return nil
		default:
		}
		err = errors.Join(unix.Mkfifo(maps+".new", 0o600), os.Rename(maps+".new", maps))
		_, writeErr := fmt.Fprintf(pipe, "1000-2000 r--s 0 fe:00 %d\n", inode)
		if err := errors.Join(err, writeErr, pipe.Close()); err != nil {
			return err
		}
	}
}

// TestStoredFilesAreBounded maps one file more than a scan stores. The scan inspects this file again for each process,
// and a stored file only once.
func TestStoredFilesAreBounded(t *testing.T) {
	const stored = 1 << 17
	line := func(inode int) string { return "1000-2000 r--s 0 fe:00 " + strconv.Itoa(inode) + "\n" }
	var maps strings.Builder
	for inode := range stored + 1 {
		maps.WriteString(line(inode + 1))
	}
	proc := newTree(t)
	proc.link("1/map_files/1000-2000", proc.dir)
	proc.write("1/maps", maps.String())
	for pid, inode := range map[int]int{42: stored, 43: stored + 1} { // processes of a pod are read after those of the host
		proc.process(pid, "x", "S", 0, 1)
		proc.write(fmt.Sprintf("%d/cgroup", pid), "0::/kubepods/poda/"+id1+"\n")
		proc.write(fmt.Sprintf("%d/maps", pid), line(inode))
		proc.link(fmt.Sprintf("%d/map_files/1000-2000", pid), "/dev/null")
	}
	a, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
	if want := []cgroup.Holder{{PID: 43, Comm: "x", Number: null, PodUID: "a"}}; err != nil || !slices.Equal(a.Holders, want) {
		t.Errorf("Holders = %+v, %v, want %+v", a, err, want)
	}
}

// TestWorkOfThreads checks that comparing the descriptor tables of many threads costs no more than a sort. Otherwise
// the pod of the threads would count as unread.
func TestWorkOfThreads(t *testing.T) {
	onHost(t)
	r := realPod(t, 1)
	pid, _ := child(t, "threads", "1200", "/dev/full")
	r.move(pid, "kubepods/pod"+uid)
	defer r.move(pid, "")
	a, err := cgroup.Holders("/proc", []cgroup.Number{full}, 0)
	if mine := func(u cgroup.Unread) bool { return u.PodUID == uid }; slices.ContainsFunc(a.Unread, mine) || len(leaders(a.Holders, pid)) != 1 {
		t.Errorf("the thread that has the node open is not found: %+v, %v", a, err)
	}
}

// TestPrivilegedPod checks that unreadable processes of a pod with access to all devices count like those of the host.
func TestPrivilegedPod(t *testing.T) {
	const host, hostMounts, own, all = "user:[4026531837]", "mnt:[4026531841]", "mnt:[4026532300]", "000001ffffffffff"
	for _, c := range []struct {
		name, space, mounts, bounding string
		session, flags                int
		any                           bool
	}{
		{"an unprivileged one", host, own, "00000000a80425fb", 7, 0, false},
		{"a privileged one", host, own, all, 7, 0, true},
		{"one with all capabilities in a namespace of its own", "user:[4026532201]", own, all, 7, 0, false},
		{"one of which the kernel says nothing", host, own, "", 7, 0, true},
		{"a privileged one that was started with nsenter", host, hostMounts, all, 7, 0, true},
		{"a child of a privileged one", host, own, all, 6, 0, true},
		{"runc before its first clone", host, hostMounts, all, 6, 0, false},
		{"runc after a clone", host, own, all, 7, 0x400040, false},
	} {
		proc := newTree(t)
		proc.link("1/ns/mnt", hostMounts)
		proc.process(7, "x", "S", 0, 1)
		proc.write("7/stat", fmt.Sprintf("7 (x) S 1 1 %d 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n", c.session, c.flags))
		proc.write("7/cgroup", "0::/kubepods/poda/"+id1+"\n")
		proc.link("7/ns/user", c.space)
		proc.link("7/ns/mnt", c.mounts)
		proc.write("7/status", "Name:\tx\nCapBnd:\t"+c.bounding+"\nCapAmb:\t0\n")
		proc.remove("7/fd")
		proc.write("7/fd", "")
		a, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
		if len(a.Unread) != 1 || a.Unread[0].PodUID != "a" || a.Unread[0].Any != c.any || (err != nil) != c.any {
			t.Errorf("%s: %+v, %v", c.name, a.Unread, err)
		}
		// After a process with very many groups, no further process is checked.
		proc.process(6, "x", "S", 0, 1)
		proc.write("6/cgroup", "0::/kubepods/poda/"+id1+"\n")
		proc.link("6/ns/user", host)
		proc.write("6/status", "Groups:\t"+strings.Repeat("4000000000 ", 65_536)+"\nCapBnd:\t0\n")
		if a, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0); err != nil {
			t.Errorf("%s, with groups: %+v, %v", c.name, a.Unread, err)
		}
	}
}

// TestMovingFileCountsAgainstItsPod continuously maps a file at new addresses, so that the scan may never inspect it.
// Only its own pod counts as unread.
func TestMovingFileCountsAgainstItsPod(t *testing.T) {
	needsRoot(t)
	for version := 1; version <= 2; version++ {
		t.Run(fmt.Sprint("cgroup ", version), func(t *testing.T) {
			r := realPod(t, version)
			pid, _ := child(t, "moving", "/var/tmp")
			r.move(pid, "kubepods/pod"+uid)
			defer r.move(pid, "")
			a, err := cgroup.Holders(processes(t, pid), eight, 0)
			t.Logf("unread: %+v", a.Unread)
			if err != nil || a.Err("another") != nil || len(a.Holders) > 0 {
				t.Errorf("Holders = %+v, %v", a, err)
			}
		})
	}
}

// TestAskerIsOmitted checks that the requesting process and all its threads are omitted, and no other process.
func TestAskerIsOmitted(t *testing.T) {
	needsRoot(t)
	asker, _ := child(t, "thread", "/dev/full")
	other, _ := child(t, "open", "/dev/full")
	a, err := cgroup.Holders(processes(t, asker, other), []cgroup.Number{full}, asker)
	if got := leaders(a.Holders, asker, other); err != nil || len(got) != 1 || got[0].PID != other {
		t.Errorf("Holders = %+v, %v, want %d", a.Holders, err, other)
	}
}
