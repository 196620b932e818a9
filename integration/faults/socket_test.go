// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/helper"
	"github.com/metalplug/metalplug/daemon/reset"
	"github.com/metalplug/metalplug/integration/exchangetest"
)

// TestImpostor replaces each helper's socket with each kind of impostor. No container may start with a disk that was not
// cleared, or whose users are unknown. Everything else must continue. When the helper is back, everything must recover.
func TestImpostor(t *testing.T) {
	noLeaks(t)
	for _, how := range []string{"nobody", "silent", "random", "other", "closes"} {
		for _, which := range []string{"holders", "survey", "prepare", "probe"} {
			t.Run(which+" "+how, func(t *testing.T) {
				t.Parallel() // some of the subtests wait
				mended, mend := context.WithCancel(context.Background())
				i := &impostor{how: how, which: which, mended: mended, file: filepath.Join(shortDir(t), "s")}
				s := newNode(t, func(s *setup) { s.touch = i.newHelpers(t, s.touch) })
				defer mend()
				s.checkBroken(which, func() { mend(); i.appear(t) })
			})
		}
	}
}

// impostor serves a socket instead of a helper until the test restores the helper. It does not listen, does not answer,
// answers with random bytes, gives a valid answer to another request, or disconnects.
type impostor struct {
	how, which string
	mended     context.Context
	file       string // the socket
	helper     device.Touch
}

// newHelpers returns helpers of which one function uses the socket, as in the daemon.
func (i *impostor) newHelpers(t *testing.T, h device.Touch) device.Touch {
	t.Helper()
	i.helper = h
	i.listen(t)
	far := helper.Touch(config.Reset{Socket: i.file}, "/sys", "")
	switch i.which {
	case "holders":
		h.Holders = i.holders
	case "survey":
		h.Survey = far.Survey
	case "prepare":
		h.Prepare = far.Prepare
	case "probe":
		h.Probe = far.Probe
	}
	return h
}

// holders requests which processes have disks open, by device number. The nodes of the disks do not exist on this
// machine, where the daemon would look for them.
func (i *impostor) holders(ctx context.Context, _ []string) (all []device.Holder, err error) {
	client := cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: i.file}}
	answer, err := client.Holders(ctx, func() []cgroup.Number { return []cgroup.Number{{Block: true, Major: 259, Minor: 1}} })
	for _, h := range answer.Holders {
		all = append(all, device.Holder{PID: h.PID, Command: h.Comm, PodUID: h.PodUID})
	}
	return all, err
}

// listen serves the socket until the test ends. Like the service manager, it serves each connection separately.
func (i *impostor) listen(t *testing.T) {
	t.Helper()
	name := i.file
	if i.how == "nobody" {
		name += ".away"
	}
	exchangetest.Listen(t, name, i.serve)
}

// appear moves the socket to its place.
func (i *impostor) appear(t *testing.T) {
	if i.how != "nobody" {
		return
	}
	if err := os.Rename(i.file+".away", i.file); err != nil {
		t.Error(err)
	}
}

// serve answers one request.
func (i *impostor) serve(fd int) {
	mended := i.mended.Err() != nil
	if i.how == "closes" && !mended {
		return
	}
	request := make([]byte, exchange.MessageSize)
	n, err := unix.Read(fd, request)
	if err != nil || n == 0 {
		return // the daemon no longer waits
	}
	var answer []byte
	switch {
	case mended:
		answer = i.answer(request[:n])
	case i.how == "silent":
		<-i.mended.Done()
		return
	case i.how == "random":
		answer = make([]byte, 1+n)
		_, _ = rand.Read(answer) // never fails
	default:
		answer = i.otherAnswer()
	}
	_, _ = unix.Write(fd, answer) // the daemon may no longer wait
}

// otherAnswer returns a valid answer to another request.
func (i *impostor) otherAnswer() []byte {
	switch i.which {
	case "holders": // ask about the node of a disk that a process has open
		return []byte(`{"holders":[{"pid":7,"comm":"dd","node":"b 8:0"}]}`)
	case "probe":
		return reset.Answer{Result: reset.OK, Report: device.Report{Done: "erased"}}.Encode()
	}
	return reset.Answer{Result: reset.OK}.Encode() // the disk is empty
}

// answer returns the helper's answer.
func (i *impostor) answer(message []byte) []byte {
	if i.which == "holders" {
		all, _ := i.helper.Holders(context.Background(), []string{"/dev/nvme1n1"}) // never fails
		answer := cgroup.Answer{}
		for _, h := range all {
			answer.Holders = append(answer.Holders, cgroup.Holder{
				PID: h.PID, Comm: h.Command, Number: cgroup.Number{Block: true, Major: 259, Minor: 1}, PodUID: h.PodUID,
			})
		}
		text, _ := json.Marshal(answer) // never fails
		return text
	}
	r, err := reset.ParseRequest(message)
	if err != nil {
		return reset.Answer{Result: reset.Malformed, Detail: err.Error()}.Encode()
	}
	target := device.Target{SysPath: r.SysPath, Identity: r.Identity}
	a := reset.Answer{Result: reset.OK}
	switch r.Do {
	case reset.Look, reset.Probe, reset.Offer:
		var reading device.Report
		reading, err = i.helper.Probe(context.Background(), target, r.Do == reset.Look)
		a.Content, a.Size = reading.Content, reading.Size
	case reset.Survey:
		var s device.Report
		s, err = i.helper.Survey(context.Background(), target, r.From)
		a.Read, a.Size, a.Content = s.Read, s.Size, s.Content
	case reset.Prepare:
		var p device.Report
		p, err = i.helper.Prepare(context.Background(), target, device.Work{
			Resource: r.Resource, Method: r.Method, Scrub: r.Scrub, Tenant: r.Tenant, Blank: r.Fingerprint == reset.Blank, ByHand: r.ByHand,
		})
		a.Done, a.Erased, a.Appearance, a.Size = p.Done, p.Erased, p.Appearance, p.Size
	}
	if err != nil {
		a = reset.Answer{Result: reset.Failed, Detail: err.Error()}
	}
	return a.Encode()
}
