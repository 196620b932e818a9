// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

var update = flag.Bool("update", false, "replace the answers in testdata")

// TestRequests plays the transcripts in testdata/requests.
func TestRequests(t *testing.T) {
	files, err := filepath.Glob("testdata/requests/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playFile(t, file, "") })
	}
}

// TestWrongDevice checks that every request is refused in the same way for a wrong device or a changed one.
func TestWrongDevice(t *testing.T) {
	for _, request := range []string{
		`{"do":"probe"}`, `{"do":"survey"}`, `{"do":"prepare","fingerprint":"blank"}`, `{"do":"prepare","method":"nvme-controller"}`,
		`{"do":"prepare","scrub":"zero","tenant":true}`,
	} {
		t.Run(request, func(t *testing.T) { playFile(t, "testdata/wrong-device.txt", request) })
	}
}

// transcript is a machine that gets requests. Each line of a transcript is a command of [transcript.do]. After a request, the answer
// and all that the helper did follow with an indentation.
type transcript struct {
	*machine
	request Request // the fields of all requests
	text    strings.Builder
}

// playFile plays the cases of a file, each on a new machine with one disk. The lines before the first case apply to all cases. In
// the file, $request stands for the given request.
func playFile(t *testing.T, file, request string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(string(text), "\n== ")
	for i, want := range cases[1:] {
		name, lines, _ := strings.Cut(want, "\n")
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _ := oneNVMe(t)
				tr := &transcript{machine: m, request: Request{Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")}}}
				tr.play(cases[0], request)
				tr.text.Reset()
				tr.play(lines, request)
				if cases[i+1] = name + "\n" + tr.text.String(); cases[i+1] != want && !*update {
					t.Errorf("%s (-update replaces the answers):\n%s\nwant\n%s", file, cases[i+1], want)
				}
			})
		})
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(cases, "\n== ")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// abbreviations are names of paths.
var abbreviations = []string{"$disk", disk0, "$controller", controller0, "$function", function0, "$bus", path.Dir(function0)}

// play executes the lines of a text, and copies them with the new answers.
func (tr *transcript) play(text, request string) {
	long := strings.NewReplacer(append([]string{"$request", request}, abbreviations...)...)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "    ") {
			continue // an old answer
		}
		tr.text.WriteString(line)
		if command := strings.TrimSpace(line); command != "" && command[0] != '#' {
			tr.do(long.Replace(command))
		}
	}
}

// do executes a command.
func (tr *transcript) do(command string) {
	verb, all, _ := strings.Cut(command, " ")
	name, rest, _ := strings.Cut(all, " ")
	node := tr.nodes[name]
	var err error
	switch verb {
	case "request": // request JSON changes these fields in all requests
		err = merge(all, &tr.request)
	case "ask": // ask JSON sends a request with these fields
		err = tr.send(all)
	case "file": // file NAME "CONTENT"
		rest, err = strconv.Unquote(rest)
		tr.files(map[string]string{name: rest})
	case "link": // link NAME TARGET
		tr.files(map[string]string{name: in(path.Dir(name), rest)})
	case "directory":
		tr.files(map[string]string{name + "/.": ""})
	case "deep-directory": // adds directories that nothing can list
		tr.addDeepDirs(name)
	case "remove":
		tr.remove(name)
	case "disk": // disk SYSPATH NUMBER WWID
		number, wwid, _ := strings.Cut(rest, " ")
		tr.disk(name, number, wwid).fill()
	case "partition": // partition SYSPATH NUMBER
		tr.partition(name, rest)
	case "two-paths": // a new machine with a disk that has two controllers
		tr.machine, _ = twoPaths(tr.T)
	case "loop": // loop [ERROR] adds a loop device whose file is the disk, or which does not show its file
		tr.loop(errnos[name])
	case "node": // node NAME NUMBER adds a character device
		tr.node(name, rest, false)
	case "no-node":
		delete(tr.nodes, name)
	case "same-node": // same-node NAME OTHER
		tr.nodes[rest] = node
	case "number": // number NODE NUMBER
		node.node.number = rest
	case "character": // character NODE makes a block device a character device
		node.node.block = false
	case "diskseq": // diskseq NODE NUMBER
		node.seq, err = strconv.ParseUint(rest, 10, 64)
	case "replaced": // replaced NODE NUMBER gives the node and $disk another diskseq, as if another disk has taken their names
		node.seq, err = strconv.ParseUint(rest, 10, 64)
		tr.files(map[string]string{disk0 + "/diskseq": rest + "\n"})
	case "busy": // another process or the kernel has the node open exclusively
		node.busy = true
	case "size": // size NODE BYTES
		var size int
		size, err = strconv.Atoi(rest)
		node.size(size)
	case "no-data": // simulates a disk that the driver has disabled
		node.data = nil
	case "rename": // rename NAME OTHER
		tr.rename(tr.root+name, tr.root+rest)
	case "data": // data NODE OFFSET COUNT "TEXT"
		var at, count int
		var text string
		_, err = fmt.Sscanf(rest, "%v %v %q", &at, &count, &text)
		copy(node.data[at:], strings.Repeat(text, count))
	case "lock": // another instance locks the device
		tr.lockElsewhere(name)
	case "attached": // attached NODE NSID attaches the namespace to another host's controller 77
		node.nsid, err = strconv.Atoi(rest)
		(&sharer{of: uint32(node.nsid), nmic: 1, attached: []uint16{1, 77}}).on(tr.machine)
	case "drive": // a new machine with a drive that executes all erase commands, for one namespace with data
		d, first, _ := newDrive(tr.T)
		d.alone().sanicap, d.fna = sanitizeBlock, 1<<0|1<<1|1<<2
		d.sanitize = func() (uint16, error) {
			first.set(0)
			d.state(1|1<<8, 65535, actBlockErase, 1)
			return 0, nil
		}
		tr.machine = d.machine
	case "admin-fails": // admin-fails OPCODE CDW10 STATUS|ERROR
		cdw10, failure, _ := strings.Cut(rest, " ")
		status, parseErr := strconv.ParseUint(failure, 0, 16)
		if errnos[failure] == nil { // otherwise, there is no status
			err = parseErr
		}
		answer := tr.onAdmin
		tr.onAdmin = func(c adminCommand, data []byte) (uint16, error) {
			if fmt.Sprintf("%#x", c.opcode) == name && fmt.Sprintf("%#x", c.cdw10) == cdw10 {
				return uint16(status), errnos[failure]
			}
			return answer(c, data)
		}
	case "sanitize-status": // sanitize-status SSTAT sets the state of the last sanitize operation
		var status uint64
		status, err = strconv.ParseUint(name, 0, 16)
		answer := tr.onAdmin
		tr.onAdmin = func(c adminCommand, data []byte) (uint16, error) {
			if c.opcode == opGetLogPage && c.cdw10 == 0x7f0081 {
				data[2], data[3] = byte(status), byte(status>>8)
				return 0, nil
			}
			return answer(c, data)
		}
	case "controllers": // controllers CMIC [ID...] lists the controllers of the NVM subsystem; without an ID, it has no list
		var s sharer
		_, err = fmt.Sscan(name, &s.cmic)
		for _, text := range strings.Fields(rest) {
			id, parseErr := strconv.ParseUint(text, 0, 16)
			err = errors.Join(err, parseErr)
			s.all = append(s.all, uint16(id))
		}
		if s.all == nil {
			s.allStatus = 0x4002
		}
		s.on(tr.machine)
	case "registered": // registered ID registers the host with this controller
		var id uint16
		_, err = fmt.Sscan(name, &id)
		(&sharer{oncs: 1 << 5, registered: []uint16{id}}).on(tr.machine)
	case "select-all":
		tr.selectsAll()
	case "smart":
		tr.setIdentify(1<<1, 1<<2, 0, 0)
	case "open-fails": // open-fails NODE ERROR
		tr.kernel.open = func(file string, flags int) (int, error) {
			if strings.TrimPrefix(file, tr.root) == name {
				return -1, errnos[rest]
			}
			return tr.openNode(file, flags)
		}
	case "read-fails": // read-fails NODE ERROR
		node.readError = errnos[rest]
	case "sync-fails": // sync-fails ERROR
		tr.syncError = errnos[name]
	case "ioctl-fails": // ioctl-fails REQUEST ERROR
		if errnos[rest] == nil {
			err = fmt.Errorf("invalid error %q", rest)
		}
		tr.onRequest(name, func() error {
			tr.note("ioctl %s fails", name)
			return errnos[rest]
		})
	case "called": // called N REQUEST COMMAND executes it before the Nth ioctl with this request
		var count int
		count, err = strconv.Atoi(name)
		name, rest, _ = strings.Cut(rest, " ")
		tr.onRequest(name, func() error {
			if count--; count == 0 {
				tr.do(rest)
			}
			return nil
		})
	case "locked": // locked HOW simulates that another process has locked the disk, so that flock fails for LOCK_SH (1) or LOCK_EX (2)
		tr.kernel.flock = func(_, how int) error {
			if strconv.Itoa(how&^unix.LOCK_NB) == name {
				return unix.EWOULDBLOCK
			}
			return nil
		}
	case "write-fails": // write-fails NAME ERROR
		tr.onWrite = func(file, _ string) error {
			if file == name {
				return errnos[rest]
			}
			return nil
		}
	case "written": // written COMMAND executes it when an attribute is written
		tr.onWrite = func(string, string) error { tr.do(all); return nil }
	case "opened": // opened N NODE COMMAND executes it when the node is opened for the Nth time
		var count int
		count, err = strconv.Atoi(name)
		name, rest, _ = strings.Cut(rest, " ")
		tr.nodes[name].opened = func() {
			if count--; count == 0 {
				tr.do(rest)
			}
		}
	case "read": // read NODE COMMAND executes it when the node is read
		node.readHook = func() { tr.do(rest) }
	default:
		err = errors.New("unknown command")
	}
	if err != nil {
		tr.Errorf("%s: %v", command, err)
	}
}

// onRequest calls a function before each ioctl with a request. If the function returns an error, the ioctl fails.
func (tr *transcript) onRequest(name string, before func() error) {
	ioctl := tr.kernel.ioctl
	tr.kernel.ioctl = func(fd int, request uintptr, argument []byte) (int, error) {
		if fmt.Sprintf("%#x", request) == name {
			if err := before(); err != nil {
				return -1, err
			}
		}
		return ioctl(fd, request, argument)
	}
}

var errnos = map[string]error{
	"EACCES": unix.EACCES, "EAGAIN": unix.EAGAIN, "EBUSY": unix.EBUSY, "EIO": unix.EIO, "ENETRESET": unix.ENETRESET, "ENODEV": unix.ENODEV,
	"ENOENT": unix.ENOENT, "ENOTTY": unix.ENOTTY, "ENXIO": unix.ENXIO, "EOPNOTSUPP": unix.EOPNOTSUPP, "EPERM": unix.EPERM, "ETIMEDOUT": unix.ETIMEDOUT,
}

// deepDirectory matches the path of a deep directory. An answer does not contain all of it.
var deepDirectory = regexp.MustCompile(`(/x{10,})+`)

// merge replaces the fields of a request that JSON names.
func merge(text string, r *Request) error {
	identity := r.Identity
	r.Identity = nil // otherwise the decoder would add to the map
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(r)
	if r.Identity == nil {
		r.Identity = identity
	}
	return err
}

// send sends a request, and adds the answer, the calls and the change of content to the text.
func (tr *transcript) send(text string) error {
	r := tr.request
	if err := merge(text, &r); err != nil {
		return err
	}
	before := make(map[*fakeNode]uint32)
	for _, n := range tr.nodes {
		before[n] = crc32.ChecksumIEEE(n.data)
	}
	tr.calls = nil
	a := tr.full(r)
	switch { // a fingerprint begins with a random seed
	case device.LooksBlank(a.Fingerprint):
		a.Fingerprint = "of a blank disk"
	case a.Fingerprint != "":
		a.Fingerprint = "of data"
	}
	lines := []string{string(a.Result)}
	if a.Detail != "" {
		lines[0] += ": " + a.Detail
	}
	if a.Report != (device.Report{}) {
		report, err := json.Marshal(a.Report)
		if err != nil {
			return err
		}
		lines = append(lines, string(report))
	}
	lines = append(lines, tr.calls...)
	for _, name := range slices.Sorted(maps.Keys(tr.nodes)) {
		n := tr.nodes[name]
		if crc32.ChecksumIEEE(n.data) != before[n] {
			lines = append(lines, fmt.Sprintf("%s has changed; blank: %t, in the cache only: %t", name, n.blank(), n.volatile))
		}
	}
	short := []string{tr.root, ""}
	for i := 0; i < len(abbreviations); i += 2 {
		short = append(short, abbreviations[i+1], abbreviations[i])
	}
	for _, line := range lines {
		line = deepDirectory.ReplaceAllLiteralString(strings.NewReplacer(short...).Replace(line), "/...")
		fmt.Fprintf(&tr.text, "    %s\n", line)
	}
	return nil
}
